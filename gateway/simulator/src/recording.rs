//! What a scheduler hears and says in a run, kept as the gateway would keep it; played again, it says the same.

use serde::{Deserialize, Serialize};
use switchyard_scheduler::{Action, Event, Scheduler, Settings, Timestamp};

use crate::gate::{Gate, View};

/// One line of a recording.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Settings(Settings),
    Event(Timestamp, Event),
    Action(Action),
}

/// A scheduler whose every word is written down.
pub(crate) struct Recorder {
    scheduler: Scheduler,
    lines: Vec<String>,
}

impl Recorder {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut recorder = Self { scheduler: Scheduler::new(settings.clone()), lines: Vec::new() };
        recorder.write(&Line::Settings(settings));
        recorder
    }

    /// The recording, a line of JSON each.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    fn write(&mut self, line: &Line) {
        self.lines.push(serde_json::to_string(line).expect("it can be written"));
    }
}

impl Gate for Recorder {
    fn handle(&mut self, now: Timestamp, event: Event) {
        self.write(&Line::Event(now, event.clone()));
        self.scheduler.handle(now, event);
    }

    fn poll_action(&mut self) -> Option<Action> {
        let action = self.scheduler.poll_action()?;
        self.write(&Line::Action(action.clone()));
        Some(action)
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.scheduler.deadline()
    }

    fn view(&self) -> Option<View> {
        self.scheduler.view()
    }
}

/// Plays the settings and events of a recording to a new scheduler, and records what that says.
pub(crate) fn replay(lines: &[String]) -> Recorder {
    let mut recorder = None;
    for line in lines {
        match (serde_json::from_str(line).expect("it can be read"), &mut recorder) {
            (Line::Settings(settings), _) => recorder = Some(Recorder::new(settings)),
            (Line::Event(now, event), Some(recorder)) => recorder.handle(now, event),
            // The shell takes actions when it gets to it.
            (Line::Action(_), Some(recorder)) => _ = recorder.poll_action(),
            (_, None) => panic!("a recording begins with the settings"),
        }
    }
    recorder.expect("a recording")
}
