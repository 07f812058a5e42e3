//! What goes wrong in a run, drawn from the seed.

use std::time::Duration;

use crate::random::Stream;

/// How often what goes wrong. The default is never.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share of the requests whose client leaves at some moment, waiting or served.
    pub cancel: f64,
    /// Share of the loads that fail.
    pub load_failure: f64,
    /// Share of the stops that take ten times as long.
    pub slow_stop: f64,
    /// Mean time between two crashes of a ready server.
    pub crash_every: Option<Duration>,
    /// Share of the news, about requests and servers alike, that the scheduler hears a second time some seconds later.
    pub stale_news: f64,
    /// Share of the looks at a server's metrics that fail.
    pub lost_scrapes: f64,
    /// Share of those that are answered late, by up to five times the interval between them.
    pub late_scrapes: f64,
}

/// What becomes of a look at a server's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scrape {
    InTime,
    Late(Duration),
    Lost,
}

/// Draws the faults of one run.
#[derive(Debug)]
pub(crate) struct Fate {
    faults: Faults,
    clients: Stream,
    servers: Stream,
}

impl Fate {
    pub(crate) fn new(faults: Faults, clients: Stream, servers: Stream) -> Self {
        Self { faults, clients, servers }
    }

    /// How long after its arrival the client of a request leaves, if it does.
    pub(crate) fn leaves_after(&mut self, usual: Duration) -> Option<Duration> {
        let mean = usual.as_secs_f64();
        self.clients.chance(self.faults.cancel).then(|| Duration::from_secs_f64(self.clients.exponential(mean)))
    }

    /// How long a load takes, and whether it succeeds. One that fails does so somewhere on the way.
    pub(crate) fn load(&mut self, usual: Duration) -> (Duration, bool) {
        if self.servers.chance(self.faults.load_failure) {
            (usual.mul_f64(self.servers.unit()), false)
        } else {
            (usual, true)
        }
    }

    /// How long a stop takes.
    pub(crate) fn stop(&mut self, usual: Duration) -> Duration {
        if self.servers.chance(self.faults.slow_stop) { usual * 10 } else { usual }
    }

    /// How long a server lives that is ready now, if not for ever.
    pub(crate) fn lives_for(&mut self) -> Option<Duration> {
        let mean = self.faults.crash_every?.as_secs_f64();
        Some(Duration::from_secs_f64(self.servers.exponential(mean)))
    }

    /// When the same news come once more, if they do.
    pub(crate) fn comes_again_after(&mut self) -> Option<Duration> {
        let again = self.faults.stale_news > 0.0 && self.servers.chance(self.faults.stale_news);
        again.then(|| Duration::from_micros(self.servers.between(0, 5_000_000)))
    }

    /// What becomes of a look at a server's metrics, of which there is one each interval.
    pub(crate) fn scrape(&mut self, interval: Duration) -> Scrape {
        let Faults { lost_scrapes, late_scrapes, .. } = self.faults;
        if lost_scrapes > 0.0 && self.servers.chance(lost_scrapes) {
            Scrape::Lost
        } else if late_scrapes > 0.0 && self.servers.chance(late_scrapes) {
            Scrape::Late((interval * 5).mul_f64(self.servers.unit()))
        } else {
            Scrape::InTime
        }
    }

    /// How long after a server's end its clients' connections are seen to break: before or after the news of the end.
    pub(crate) fn notices_after(&mut self) -> Duration {
        Duration::from_micros(self.servers.between(0, 2_000))
    }
}
