//! A scheduler with a hand on its clock. Models are letters, requests are numbers, and every step says which actions
//! it expects, in words.

use std::time::Duration;

use switchyard_scheduler::{
    Action, BandSettings, Bounds, Decision, Event, EvictionSettings, FifoSettings, FlowDecision, FlowSettings,
    Generation, GroupSettings, MatrixSettings, ModelId, ModelSettings, PolicySettings, Priority, ReplicaId,
    ReplicaState, Request, RequestId, Scheduler, SerialSettings, Settings, Timestamp, Usage,
};

/// The model with this letter.
pub(crate) fn model(letter: char) -> ModelId {
    ModelId(u32::from(letter))
}

/// The first replica of the model with this letter.
pub(crate) fn replica(letter: char) -> ReplicaId {
    ReplicaId { model: model(letter), index: 0 }
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Settings with these models, each on its own in memory.
pub(crate) fn settings(policy: PolicySettings, models: &str) -> Settings {
    let models = models.chars().map(|letter| (model(letter), ModelSettings::default())).collect();
    Settings { policy, models, ..Settings::default() }
}

pub(crate) fn serial(models: &str) -> Settings {
    settings(PolicySettings::Serial(SerialSettings::default()), models)
}

pub(crate) fn fifo(models: &str) -> Settings {
    settings(PolicySettings::Fifo(FifoSettings::default()), models)
}

pub(crate) fn flow(models: &str) -> Settings {
    settings(PolicySettings::Flow(FlowSettings::default()), models)
}

/// Changes to settings, chained.
pub(crate) trait Tune: Sized {
    fn tune(self, change: impl FnOnce(&mut Settings)) -> Self;

    fn bonus(self, points: u32) -> Self {
        self.serially(|serial| serial.swap_affinity_bonus = points)
    }

    fn divisor(self, secs: u32) -> Self {
        self.serially(|serial| serial.aging_divisor = secs)
    }

    fn slots(self, slots: u32) -> Self {
        self.serially(|serial| serial.slots = slots)
    }

    fn serially(self, change: impl FnOnce(&mut SerialSettings)) -> Self {
        self.tune(|settings| match &mut settings.policy {
            PolicySettings::Serial(serial) => change(serial),
            _ => panic!("not serial"),
        })
    }

    fn model_priority(self, letter: char, points: i64) -> Self {
        self.tune(|settings| match &mut settings.policy {
            PolicySettings::Fifo(fifo) => _ = fifo.model_priority.insert(model(letter), points),
            _ => panic!("not fifo"),
        })
    }

    fn model(self, letter: char, change: impl FnOnce(&mut ModelSettings)) -> Self {
        self.tune(|settings| change(settings.models.entry(model(letter)).or_default()))
    }

    fn concurrency(self, limit: u32) -> Self {
        self.tune(|settings| settings.models.values_mut().for_each(|model| model.concurrency = limit))
    }

    /// A group whose flags are the words of `flags`.
    fn group(self, flags: &str, members: &str) -> Self {
        let flag = |name| flags.split(' ').any(|flag| flag == name);
        let group = GroupSettings {
            swap: flag("swap"),
            exclusive: flag("exclusive"),
            persistent: flag("persistent"),
            members: members.chars().map(model).collect(),
        };
        self.tune(|settings| {
            let EvictionSettings::Groups(groups) = &mut settings.eviction else {
                panic!("these settings have a matrix")
            };
            groups.push(group);
        })
    }

    /// The sets of models that fit into memory together, instead of groups.
    fn matrix(self, sets: &[&str]) -> Self {
        let sets = sets.iter().map(|set| set.chars().map(model).collect()).collect();
        self.tune(|settings| {
            settings.eviction = EvictionSettings::Matrix(MatrixSettings { sets, ..Default::default() })
        })
    }

    /// All models fit into memory together.
    fn together(self) -> Self {
        let members: String = self.settings_ref().models.keys().filter_map(|model| char::from_u32(model.0)).collect();
        self.group("", &members)
    }

    fn settings_ref(&self) -> &Settings;

    fn waiting(self, requests: u64) -> Self {
        self.tune(|settings| settings.admission.total.requests = requests)
    }

    fn bands(self, change: impl FnOnce(&mut [BandSettings; 3])) -> Self {
        self.tune(|settings| change(&mut settings.admission.bands))
    }
}

impl Tune for Settings {
    fn tune(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self);
        self
    }

    fn settings_ref(&self) -> &Settings {
        self
    }
}

pub(crate) fn bounds(requests: u64, bytes: u64) -> Bounds {
    Bounds { requests, bytes }
}

/// The scheduler under test.
pub(crate) struct Yard {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Timestamp,
    decisions: Vec<(RequestId, Decision)>,
    last_retry_after: Option<Duration>,
    last_held_up: Option<FlowDecision>,
}

impl Yard {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            scheduler: Scheduler::new(settings),
            now: Timestamp::ZERO,
            decisions: Vec::new(),
            last_retry_after: None,
            last_held_up: None,
        }
    }

    /// Lets time pass, without a word to the scheduler.
    pub(crate) fn wait(&mut self, secs: u64) -> &mut Self {
        self.now = self.now + Duration::from_secs(secs);
        self
    }

    #[track_caller]
    pub(crate) fn event(&mut self, event: Event, expected: &str) {
        self.scheduler.handle(self.now, event);
        assert_eq!(self.actions(), expected, "at {:?}", self.now);
    }

    #[track_caller]
    pub(crate) fn arrive(&mut self, id: u64, letter: char, priority: i64, expected: &str) {
        self.request(Self::plain(id, letter, priority), expected);
    }

    pub(crate) fn plain(id: u64, letter: char, priority: i64) -> Request {
        Request { bytes: 1, ..Request::new(RequestId(id), model(letter), Priority(priority)) }
    }

    #[track_caller]
    pub(crate) fn request(&mut self, request: Request, expected: &str) {
        self.event(Event::Arrive(request), expected);
    }

    #[track_caller]
    pub(crate) fn cancel(&mut self, id: u64, expected: &str) {
        self.event(Event::Cancel { id: RequestId(id) }, expected);
    }

    #[track_caller]
    pub(crate) fn finish(&mut self, id: u64, expected: &str) {
        self.event(Event::Finished { id: RequestId(id), usage: Usage::default() }, expected);
    }

    /// The newest load of the model's first replica has succeeded.
    #[track_caller]
    pub(crate) fn loaded(&mut self, letter: char, expected: &str) {
        let generation = self.generation(letter);
        self.event(Event::LoadDone { replica: replica(letter), generation, ok: true }, expected);
    }

    /// The newest load of one of the model's replicas has succeeded.
    pub(crate) fn load_done(&self, letter: char, index: u32) -> Event {
        let replica = ReplicaId { model: model(letter), index };
        let view = self.scheduler.replicas().find(|view| view.replica == replica).expect("was loaded");
        Event::LoadDone { replica, generation: view.generation, ok: true }
    }

    #[track_caller]
    pub(crate) fn load_failed(&mut self, letter: char, expected: &str) {
        let generation = self.generation(letter);
        self.event(Event::LoadDone { replica: replica(letter), generation, ok: false }, expected);
    }

    #[track_caller]
    pub(crate) fn stopped(&mut self, letter: char, expected: &str) {
        let generation = self.generation(letter);
        self.event(Event::StopDone { replica: replica(letter), generation }, expected);
    }

    #[track_caller]
    pub(crate) fn exited(&mut self, letter: char, expected: &str) {
        let generation = self.generation(letter);
        self.event(Event::Exited { replica: replica(letter), generation }, expected);
    }

    /// One of the model's replicas has gone away by itself.
    #[track_caller]
    pub(crate) fn exited_at(&mut self, letter: char, index: u32, expected: &str) {
        let Event::LoadDone { replica, generation, .. } = self.load_done(letter, index) else { return };
        self.event(Event::Exited { replica, generation }, expected);
    }

    /// Jumps to the deadline.
    #[track_caller]
    pub(crate) fn deadline(&mut self, secs: u64, expected: &str) {
        let deadline = self.scheduler.deadline().expect("a deadline");
        assert_eq!(deadline, Timestamp::from_secs(secs));
        self.now = self.now.max(deadline);
        self.event(Event::Tick, expected);
    }

    /// Has a model loaded, with nobody waiting.
    #[track_caller]
    pub(crate) fn warm(&mut self, letter: char) {
        self.event(Event::Preload { models: vec![model(letter)] }, &format!("load {letter}"));
        self.loaded(letter, "");
    }

    /// The account of a dispatch.
    #[track_caller]
    pub(crate) fn decision(&self, id: u64) -> Decision {
        self.decisions.iter().find(|(known, _)| known.0 == id).expect("was dispatched").1
    }

    /// The account of the latest dispatch.
    #[track_caller]
    pub(crate) fn decision_of_latest(&self) -> Decision {
        self.decisions.last().expect("something was dispatched").1
    }

    /// What the latest request that was rejected waited for.
    pub(crate) fn held_up(&self) -> Option<FlowDecision> {
        self.last_held_up
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.last_retry_after
    }

    pub(crate) fn state(&self, letter: char) -> ReplicaState {
        self.scheduler
            .replicas()
            .find(|view| view.replica == replica(letter))
            .map_or(ReplicaState::Stopped, |view| view.state)
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.scheduler.bands().iter().map(|band| band.requests).sum()
    }

    fn generation(&self, letter: char) -> Generation {
        self.scheduler.replicas().find(|view| view.replica == replica(letter)).expect("was loaded").generation
    }

    fn actions(&mut self) -> String {
        let mut words = Vec::new();
        while let Some(action) = self.scheduler.poll_action() {
            words.push(self.say(&action));
        }
        words.join(", ")
    }

    fn say(&mut self, action: &Action) -> String {
        match action {
            Action::Dispatch { id, replica, decision, .. } => {
                self.decisions.push((*id, *decision));
                format!("run {} on {}", id.0, name(*replica))
            }
            Action::Reject { id, outcome, retry_after, flow, .. } => {
                self.last_retry_after = *retry_after;
                self.last_held_up = *flow;
                format!("reject {} {}", id.0, outcome.as_str())
            }
            Action::Load { replica, request, evicted, .. } => {
                let request = request.map(|id| format!(" for {}", id.0)).unwrap_or_default();
                let evicted: Vec<_> = evicted.iter().map(|&replica| name(replica)).collect();
                let evicted = if evicted.is_empty() { String::new() } else { format!(" after {}", evicted.join("+")) };
                format!("load {}{request}{evicted}", name(*replica))
            }
            Action::Stop { replica, reason, .. } => {
                format!("stop {} {}", name(*replica), format!("{reason:?}").to_lowercase())
            }
            Action::Drained => "drained".to_owned(),
        }
    }
}

fn name(replica: ReplicaId) -> String {
    let letter = char::from_u32(replica.model.0).unwrap_or('?');
    if replica.index == 0 { letter.to_string() } else { format!("{letter}.{}", replica.index) }
}
