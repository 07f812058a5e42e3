//! A shell of nothing but bookkeeping: it does what the scheduler says, and checks that it may say so.

use std::collections::{BTreeMap, BTreeSet};

use switchyard_scheduler::{
    Action, Caller, Event, EvictionSettings, Generation, Load, ModelId, ModelSettings, Outcome, PolicySettings,
    ReplicaId, ReplicaState, Request, RequestId, Scheduler, Settings, StopReason, Timestamp, Usage,
};

/// A process as the shell knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Loading,
    Ready,
    Stopping,
}

/// The world around a scheduler.
pub(crate) struct Shell {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Timestamp,
    pub(crate) settings: Settings,
    pub(crate) waiting: BTreeMap<RequestId, (Request, Timestamp)>,
    pub(crate) running: BTreeMap<RequestId, (ReplicaId, Generation)>,
    /// Those that run, as they arrived.
    sent: BTreeMap<RequestId, Request>,
    /// Who has limits, of those that have not ended.
    callers: BTreeMap<RequestId, Caller>,
    pub(crate) processes: BTreeMap<ReplicaId, (Generation, Process)>,
    ended: BTreeSet<RequestId>,
    newest: BTreeMap<ReplicaId, Generation>,
    /// Whether a replica was a process of this machine when it was loaded.
    managed: BTreeMap<ReplicaId, bool>,
    /// Dispatches by which a replica's life was prolonged against a better request.
    exceptions: BTreeMap<(ReplicaId, Generation), u32>,
    next: u64,
    draining: bool,
    drained: bool,
    pub(crate) recording: Vec<(Timestamp, Event)>,
    pub(crate) actions: Vec<Action>,
}

impl Shell {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            scheduler: Scheduler::new(settings.clone()),
            now: Timestamp::ZERO,
            settings,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            sent: BTreeMap::new(),
            callers: BTreeMap::new(),
            processes: BTreeMap::new(),
            ended: BTreeSet::new(),
            newest: BTreeMap::new(),
            managed: BTreeMap::new(),
            exceptions: BTreeMap::new(),
            next: 0,
            draining: false,
            drained: false,
            recording: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Tells the scheduler, and does all that it answers.
    pub(crate) fn tell(&mut self, event: Event) {
        self.recording.push((self.now, event.clone()));
        match &event {
            Event::Arrive(request) => {
                self.waiting.insert(request.id, (request.clone(), request.arrived.unwrap_or(self.now)));
                self.callers.extend(request.caller.clone().map(|caller| (request.id, caller)));
            }
            Event::Cancel { id } => {
                let was_known = self.waiting.remove(id).is_some() | self.running.remove(id).is_some();
                if was_known {
                    self.end(*id);
                }
            }
            Event::Finished { id, .. } => {
                if self.running.remove(id).is_some() {
                    self.end(*id);
                }
            }
            Event::LoadDone { replica, generation, ok } => {
                if self.processes.get(replica) == Some(&(*generation, Process::Loading)) {
                    if *ok {
                        self.processes.insert(*replica, (*generation, Process::Ready));
                    } else {
                        self.processes.remove(replica);
                    }
                }
            }
            Event::StopDone { replica, generation } => {
                if self.processes.get(replica) == Some(&(*generation, Process::Stopping)) {
                    self.processes.remove(replica);
                }
            }
            Event::Exited { replica, generation } => {
                if self.processes.get(replica).is_some_and(|(known, _)| known == generation) {
                    self.processes.remove(replica);
                }
            }
            Event::Reconfigure(settings) => self.settings = (**settings).clone(),
            Event::Drain => self.draining = true,
            Event::Sample { .. } | Event::Unload { .. } | Event::Preload { .. } | Event::Tick => {}
        }
        self.scheduler.handle(self.now, event);
        while let Some(action) = self.scheduler.poll_action() {
            self.obey(&action);
            self.actions.push(action);
        }
        self.compare_views();
        self.check_limits();
    }

    /// No caller has more waiting or running than it may.
    fn check_limits(&self) {
        for caller in self.callers.values() {
            let count = |ids: &mut dyn Iterator<Item = &RequestId>| {
                ids.filter(|id| self.callers.get(id).is_some_and(|other| other.id == caller.id)).count()
            };
            let (waiting, running) = (count(&mut self.waiting.keys()), count(&mut self.running.keys()));
            assert!(caller.waiting.is_none_or(|limit| waiting <= limit as usize), "{waiting} of {caller:?} wait");
            assert!(caller.running.is_none_or(|limit| running <= limit as usize), "{running} of {caller:?} run");
        }
    }

    /// Whether a waiting request may have to wait for others of its caller.
    fn may_be_parked(&self, request: &Request) -> bool {
        let Some(Caller { id, running: Some(limit), .. }) = request.caller else { return false };
        self.callers.values().filter(|caller| caller.id == id).count() > limit as usize
    }

    fn end(&mut self, id: RequestId) {
        assert!(self.ended.insert(id), "{id:?} ends twice");
        self.sent.remove(&id);
        self.callers.remove(&id);
    }

    fn obey(&mut self, action: &Action) {
        match action {
            Action::Dispatch { id, replica, generation, decision } => {
                assert_eq!(self.processes.get(replica), Some(&(*generation, Process::Ready)), "{action:?}");
                assert!(!self.draining, "{action:?} while draining");
                self.check_nobody_better_is_held_up(*id, *replica, *generation);
                let (request, arrived) = self.waiting.remove(id).expect("waits");
                assert_eq!(request.model, replica.model);
                assert_eq!(decision.waited, self.now.since(arrived));
                assert_eq!(decision.still_waiting, self.waiting.len() as u64);
                self.running.insert(*id, (*replica, *generation));
                self.sent.insert(*id, Request { arrived: Some(arrived), ..request });
                let here = self.running.values().filter(|&&place| place == (*replica, *generation)).count();
                assert!(here <= self.model(replica.model).concurrency as usize, "{action:?}: over the limit");
                if let Some(flow) = decision.flow {
                    // Who stands in the way of another model goes, if it can, so that its replica can leave.
                    let in_the_way = self.waiting.values().any(|(request, _)| request.model != replica.model);
                    assert!(in_the_way || flow.saturation.is_none_or(|used| used < flow.ceiling), "{action:?}");
                }
                if let PolicySettings::Serial(serial) = &self.settings.policy {
                    assert!(self.slots_taken() <= serial.slots as usize, "{action:?}: over the slots");
                }
            }
            Action::Reject { id, outcome, .. } => {
                let (_, arrived) = self.waiting.remove(id).expect("waits");
                if *outcome == Outcome::RejectedTtl {
                    assert!(self.now > arrived || self.scheduler.deadline().is_none_or(|at| at >= self.now));
                }
                self.end(*id);
            }
            Action::Load { replica, generation, request, .. } => {
                assert!(!self.draining, "{action:?} while draining");
                assert!(!self.processes.contains_key(replica), "{action:?}: it is up");
                assert!(self.newest.insert(*replica, *generation) < Some(*generation), "{action:?}: stale");
                if let Some(id) = request {
                    let (request, _) = self.waiting.get(id).expect("the load is for somebody who waits");
                    assert_eq!(request.model, replica.model);
                }
                assert!(self.fits(replica.model), "{action:?} beside {:?}", self.processes);
                self.processes.insert(*replica, (*generation, Process::Loading));
                self.managed.insert(*replica, self.model(replica.model).managed);
            }
            Action::Stop { replica, generation, reason } => {
                let busy = self.running.values().any(|&place| place == (*replica, *generation));
                match self.processes.insert(*replica, (*generation, Process::Stopping)) {
                    Some((known, Process::Loading)) => {
                        assert_eq!(known, *generation);
                        assert_ne!(*reason, StopReason::Idle);
                        assert_ne!(*reason, StopReason::Evicted);
                    }
                    Some((known, Process::Ready)) => {
                        assert_eq!(known, *generation);
                        assert_ne!(*reason, StopReason::Abandoned);
                        assert!(!busy || *reason == StopReason::Unload, "{action:?} while it runs something");
                    }
                    other => panic!("{action:?} of {other:?}"),
                }
            }
            Action::Drained => {
                assert!(self.draining && !self.drained);
                assert!(self.waiting.is_empty() && self.running.is_empty() && self.processes.is_empty());
                self.drained = true;
            }
        }
    }

    /// Under fifo: nobody may keep a replica busy that a better request needs gone. Each load has two exceptions: the
    /// first request at its end, and the one that it was for.
    fn check_nobody_better_is_held_up(&mut self, id: RequestId, replica: ReplicaId, generation: Generation) {
        let PolicySettings::Fifo(fifo) = &self.settings.policy else { return };
        let key = |request: &Request| {
            let points = fifo.model_priority.get(&request.model).copied().unwrap_or(0);
            (i128::from(request.priority.0) + i128::from(points), std::cmp::Reverse(request.id))
        };
        let own = key(&self.waiting[&id].0);
        let is_held_up = self.waiting.values().any(|(request, _)| {
            key(request) > own
                && !self.may_be_parked(request)
                && self.can_be_loaded(request.model)
                && self.must_leave(request.model, replica)
        });
        if is_held_up {
            let count = self.exceptions.entry((replica, generation)).or_default();
            *count += 1;
            assert!(*count <= 2, "{id:?} prolongs the life of {replica:?} against a better request");
        }
    }

    /// Whether all that a model needs to be loaded is room.
    fn can_be_loaded(&self, model: ModelId) -> bool {
        let mut views = self.scheduler.replicas().filter(|view| view.replica.model == model).peekable();
        self.settings.models.contains_key(&model)
            && views.all(|view| match view.state {
                ReplicaState::Stopped => true,
                ReplicaState::Failed { until } => until <= self.now,
                _ => false,
            })
    }

    /// Whether there is room for a model beside all that is there.
    fn fits(&self, wanted: ModelId) -> bool {
        let mut others = self.processes.keys();
        let EvictionSettings::Matrix(matrix) = &self.settings.eviction else {
            return others.all(|&other| !self.must_leave(wanted, other));
        };
        let others: Vec<_> = others.filter(|other| self.managed[other] && other.model != wanted).collect();
        !self.model(wanted).managed
            || others.is_empty()
            || matrix
                .sets
                .iter()
                .any(|set| set.contains(&wanted) && others.iter().all(|other| set.contains(&other.model)))
    }

    /// Whether a replica has to leave for a model, whatever else does: the rules in other words than the scheduler's.
    fn must_leave(&self, wanted: ModelId, other: ReplicaId) -> bool {
        if wanted == other.model || !self.model(wanted).managed || !self.managed[&other] {
            return false;
        }
        match &self.settings.eviction {
            EvictionSettings::Groups(groups) => {
                let group = |id| groups.iter().find(|group| group.members.contains(&id));
                match (group(wanted), group(other.model)) {
                    (None, None) => true,
                    (None, Some(theirs)) => !theirs.persistent,
                    (Some(ours), None) => ours.exclusive,
                    (Some(ours), Some(theirs)) if std::ptr::eq(ours, theirs) => ours.swap,
                    (Some(ours), Some(theirs)) => ours.exclusive && !theirs.persistent,
                }
            }
            EvictionSettings::Matrix(matrix) => {
                !matrix.sets.iter().any(|set| set.contains(&wanted) && set.contains(&other.model))
            }
        }
    }

    fn model(&self, id: ModelId) -> ModelSettings {
        self.settings.models.get(&id).cloned().unwrap_or_default()
    }

    /// Running requests that hold a slot.
    fn slots_taken(&self) -> usize {
        self.running.values().filter(|(replica, _)| self.model(replica.model).takes_slot).count()
    }

    fn compare_views(&self) {
        let bands = self.scheduler.bands();
        assert_eq!(bands.iter().map(|band| band.requests).sum::<u64>(), self.waiting.len() as u64);
        let bytes: u64 = self.waiting.values().map(|(request, _)| request.bytes).sum();
        assert_eq!(bands.iter().map(|band| band.bytes).sum::<u64>(), bytes);
        let oldest = self.waiting.values().map(|&(_, arrived)| arrived).min();
        assert_eq!(bands.iter().filter_map(|band| band.oldest).min(), oldest);
        assert_eq!(self.scheduler.running(), self.running.len() as u64);
        for view in self.scheduler.replicas() {
            let process = self.processes.get(&view.replica).map(|&(_, process)| process);
            let expected = match view.state {
                ReplicaState::Stopped | ReplicaState::Failed { .. } => None,
                ReplicaState::Loading => Some(Process::Loading),
                ReplicaState::Ready => Some(Process::Ready),
                ReplicaState::Stopping => Some(Process::Stopping),
            };
            assert_eq!(process, expected, "{view:?}");
            let place = (view.replica, view.generation);
            let running = self.running.values().filter(|&&other| other == place).count();
            if process.is_some() {
                assert_eq!(view.running as usize, running, "{view:?}");
            }
        }
    }

    pub(crate) fn arrive(&mut self, request: Request) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        self.tell(Event::Arrive(Request { id, ..request }));
        id
    }

    /// A running request has come to nothing, and wants to go anew.
    pub(crate) fn come_back(&mut self, id: RequestId) {
        let request = self.sent[&id].clone();
        let usage = Usage { prompt_tokens: Some(0), ..Usage::default() };
        self.tell(Event::Finished { id, usage });
        self.ended.remove(&id);
        self.tell(Event::Arrive(request));
    }

    pub(crate) fn finish(&mut self, id: RequestId) {
        self.tell(Event::Finished { id, usage: Usage::default() });
    }

    /// Answers one load or stop, well.
    fn answer(&mut self, replica: ReplicaId) {
        let (generation, process) = self.processes[&replica];
        match process {
            Process::Loading => self.tell(Event::LoadDone { replica, generation, ok: true }),
            Process::Stopping => self.tell(Event::StopDone { replica, generation }),
            Process::Ready => {}
        }
    }

    /// Answers every load and stop until there are none.
    pub(crate) fn answer_all(&mut self) {
        for _ in 0..1_000 {
            let pending = self.processes.iter().find(|(_, (_, process))| *process != Process::Ready);
            let Some((&replica, _)) = pending else { return };
            self.answer(replica);
        }
        panic!("it goes on for ever");
    }

    /// Every server says that it has nothing to do.
    fn sample_all(&mut self) {
        let ready: Vec<_> = self.processes.iter().map(|(&replica, &(generation, _))| (replica, generation)).collect();
        for (replica, generation) in ready {
            self.tell(Event::Sample { replica, generation, load: Load::default() });
        }
    }

    /// From here on everything succeeds and ends: then all that waits has to go, too.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.answer_all();
            self.sample_all();
            if self.processes.values().any(|(_, process)| *process != Process::Ready) {
                // The samples came late enough for a load to begin.
                continue;
            }
            if let Some(&id) = self.running.keys().next() {
                self.finish(id);
            } else if self.waiting.is_empty() {
                return;
            } else {
                let deadline = self.scheduler.deadline().expect("those who wait wait for something");
                self.now = self.now.max(deadline);
                self.tell(Event::Tick);
            }
        }
        panic!("{} wait for ever", self.waiting.len());
    }

    /// Drains, and sees it end.
    pub(crate) fn shut_down(&mut self) {
        self.tell(Event::Drain);
        assert!(self.waiting.is_empty());
        self.answer_all();
        while let Some(&id) = self.running.keys().next() {
            self.finish(id);
            self.answer_all();
        }
        assert!(self.drained);
        assert_eq!(self.ended.len() as u64, self.next, "every request has ended exactly once");
    }
}
