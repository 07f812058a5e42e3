//! All model servers: one supervisor per replica, and what the rest of the gateway sees of them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use switchyard_scheduler::{Generation, ReplicaId};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};

use super::{
    BackendEvent, BackendSnapshot, BackendState, Logs,
    supervisor::{Command, Inbox, Load, Supervisor, refusal},
};
use crate::config::{Looks, Model};

/// Between two checks of a remote server that is ready.
const REMOTE_CHECK_PERIOD: Duration = Duration::from_secs(10);

/// The model servers. Cheap to clone; when the last clone is dropped, every one of them is killed.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

/// Settings of a [`Fleet`].
#[derive(Clone, Copy, Debug)]
pub struct FleetOptions {
    /// Bytes of output kept of each model, and as many of all together.
    pub log_buffer_bytes: usize,
}

struct Shared {
    events: mpsc::UnboundedSender<BackendEvent>,
    runtime: Handle,
    logs: Logs,
    shutdown: watch::Sender<bool>,
    looks: watch::Sender<Looks>,
    remote_check_period: Duration,
    replicas: Mutex<BTreeMap<ReplicaId, Replica>>,
}

/// The ends of a supervisor's channels; the second is closed when it has ended.
struct Replica {
    commands: mpsc::UnboundedSender<Command>,
    status: watch::Receiver<BackendSnapshot>,
}

impl Fleet {
    /// Starts with nothing loaded. `events` gets the news, and the answers to [`Fleet::load`] and [`Fleet::stop`].
    /// Must be called inside a tokio runtime, in which the supervisors then live.
    #[must_use]
    pub fn new(events: mpsc::UnboundedSender<BackendEvent>, options: FleetOptions) -> Self {
        Self::with_remote_check_period(events, options, REMOTE_CHECK_PERIOD)
    }

    pub(super) fn with_remote_check_period(
        events: mpsc::UnboundedSender<BackendEvent>,
        options: FleetOptions,
        remote_check_period: Duration,
    ) -> Self {
        let shared = Shared {
            events,
            runtime: Handle::current(),
            logs: Logs::new(options.log_buffer_bytes),
            shutdown: watch::Sender::new(false),
            looks: watch::Sender::new(Looks::default()),
            remote_check_period,
            replicas: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes the replica ready. Returns at once; one [`BackendEvent::LoadDone`] follows, unless a stop comes first. `sent`
    /// counts the requests that it is sent, for whoever wants to know which of them a [`BackendEvent::Sample`] may lack.
    pub fn load(&self, replica: ReplicaId, generation: Generation, model: Arc<Model>, sent: Arc<AtomicU64>) {
        let command = Command::Load(Load { generation, model: Arc::clone(&model), sent });
        let mut replicas = self.shared.replicas.lock();
        let entry = match replicas.entry(replica) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.start_supervisor(replica, generation, &model)),
        };
        self.tell(replica, &entry.commands, command);
    }

    /// Stops the replica, or its load. Returns at once; one [`BackendEvent::StopDone`] follows when everything that
    /// the process started is gone, or at once where that is so already.
    pub fn stop(&self, replica: ReplicaId, generation: Generation) {
        let command = Command::Stop(generation);
        match self.shared.replicas.lock().get(&replica) {
            Some(entry) => self.tell(replica, &entry.commands, command),
            None => self.answer(refusal(replica, command)),
        }
    }

    /// Somebody has reason to think that the replica is gone. Resolves when it has been looked at and, if it is gone, that
    /// has been dealt with; to whether it is still there.
    pub async fn check(&self, replica: ReplicaId, generation: Generation) -> bool {
        let (asking, answer) = oneshot::channel();
        let command = Command::Check { generation, asking };
        match self.shared.replicas.lock().get(&replica) {
            Some(entry) => self.tell(replica, &entry.commands, command),
            None => self.answer(refusal(replica, command)),
        }
        // A sender that is dropped has nothing to tell any more.
        let _ = answer.await;
        let status = self.shared.replicas.lock().get(&replica).map(|entry| entry.status.clone());
        status.is_some_and(|status| {
            let status = status.borrow();
            status.generation == generation && status.state == BackendState::Ready
        })
    }

    /// Says how often replicas are looked at from now on.
    pub fn look(&self, looks: Looks) {
        self.shared.looks.send_if_modified(|known| {
            let is_new = *known != looks;
            *known = looks;
            is_new
        });
    }

    /// The state of every replica that was ever loaded, for people.
    #[must_use]
    pub fn snapshots(&self) -> Vec<BackendSnapshot> {
        self.shared.replicas.lock().values().map(|replica| replica.status.borrow().clone()).collect()
    }

    /// What the model servers print.
    #[must_use]
    pub fn logs(&self) -> &Logs {
        &self.shared.logs
    }

    /// Forgets models, by id, that are not configured any more: their logs, and their snapshots where nothing of
    /// them runs.
    pub fn retain(&self, configured: impl Fn(&str) -> bool) {
        self.shared.replicas.lock().retain(|_, replica| {
            let status = replica.status.borrow();
            !matches!(status.state, BackendState::Stopped | BackendState::Failed) || configured(&status.model)
        });
        self.shared.logs.retain(configured);
    }

    /// Kills everything now, without grace, and returns when all of it is gone. What is loaded later fails.
    pub async fn shutdown(&self) {
        self.shared.shutdown.send_replace(true);
        let replicas: Vec<_> = self.shared.replicas.lock().values().map(|replica| replica.status.clone()).collect();
        for mut status in replicas {
            while status.changed().await.is_ok() {}
        }
    }

    fn start_supervisor(&self, replica: ReplicaId, generation: Generation, model: &Model) -> Replica {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (status, status_receiver) = watch::channel(BackendSnapshot {
            replica,
            generation,
            model: model.id.clone(),
            state: BackendState::Stopped,
            pid: None,
            since: SystemTime::now(),
            starts: 0,
            upstream: model.upstream.clone(),
            sample: None,
        });
        let supervisor = Supervisor {
            inbox: Inbox {
                replica,
                commands: inbox,
                events: self.shared.events.clone(),
                shutdown: self.shared.shutdown.subscribe(),
                is_watched: false,
                suspicions: Arc::default(),
            },
            looks: self.shared.looks.subscribe(),
            logs: self.shared.logs.clone(),
            status,
            remote_check_period: self.shared.remote_check_period,
        };
        self.shared.runtime.spawn(supervisor.run());
        Replica { commands, status: status_receiver }
    }

    fn tell(&self, replica: ReplicaId, commands: &mpsc::UnboundedSender<Command>, command: Command) {
        if let Err(mpsc::error::SendError(command)) = commands.send(command) {
            self.answer(refusal(replica, command));
        }
    }

    fn answer(&self, event: BackendEvent) {
        // Without a dispatcher, nobody wants to know.
        let _ = self.shared.events.send(event);
    }
}
