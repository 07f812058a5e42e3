//! Who owns a process: a mark in its environment, which its own children inherit wherever they go.
//!
//! By the mark, a stop finds workers that have left their process group, and a new gateway finds what one that was
//! killed has left behind: the signal on the parent's death reaches only its direct children.

use std::{
    fmt,
    str::FromStr,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The environment variable that carries the mark.
pub(super) const VARIABLE: &str = "SWITCHYARD_OWNER";

/// A gateway process. Pids are reused, so its start time is part of its name; they mean something only in their
/// namespace (a container's pid 1 is not the host's), so that is too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    namespace: u64,
    pid: u32,
    start: u64,
}

static SELF: LazyLock<Owner> = LazyLock::new(Owner::this_process);

/// The mark of one start of a model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    owner: Owner,
    serial: u64,
}

impl Mark {
    /// A mark of this process that no other start carries.
    pub(super) fn next() -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Self { owner: *SELF, serial: SERIAL.fetch_add(1, Ordering::Relaxed) }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { namespace, pid, start } = self.owner;
        write!(f, "{namespace}-{pid}-{start}-{}", self.serial)
    }
}

impl FromStr for Mark {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = text.split('-').map(|part| part.parse::<u64>().map_err(drop));
        let mut next = || numbers.next().ok_or(())?;
        let owner = Owner { namespace: next()?, pid: u32::try_from(next()?).map_err(drop)?, start: next()? };
        Ok(Self { owner, serial: next()? })
    }
}

#[cfg(not(target_os = "linux"))]
mod scan {
    use super::Owner;

    impl Owner {
        pub(super) fn this_process() -> Self {
            Self { namespace: 0, pid: std::process::id(), start: 0 }
        }
    }

    /// Finds nothing: only Linux tells the environment of other processes.
    pub fn reap_leftovers() -> Vec<u32> {
        Vec::new()
    }
}

#[cfg(target_os = "linux")]
mod scan {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use nix::{
        errno::Errno,
        sys::signal::{Signal, kill},
        unistd::{Pid, getpid},
    };

    use super::{Mark, Owner, SELF, VARIABLE};
    use crate::backend::procfs::{self, Stat};

    /// The longest that [`reap_leftovers`] waits for the killed to be gone.
    const PATIENCE: Duration = Duration::from_secs(10);

    impl Owner {
        pub(super) fn this_process() -> Self {
            Self {
                namespace: procfs::pid_namespace().unwrap_or(0),
                pid: std::process::id(),
                start: Stat::of(getpid()).map_or(0, |stat| stat.start),
            }
        }

        /// Surely dead. What cannot be seen from here counts as alive: another namespace, another user's process.
        fn is_dead(self) -> bool {
            let Ok(pid) = i32::try_from(self.pid).map(Pid::from_raw) else { return false };
            self.namespace == SELF.namespace
                && match Stat::of(pid) {
                    Some(stat) => stat.dead || stat.start != self.start,
                    None => kill(pid, None) == Err(Errno::ESRCH),
                }
        }
    }

    /// The living processes that carry the mark or belong to the group, or are known to have done so: one that dies
    /// loses its environment, and the mark in it, before it closes what it has open.
    pub(in crate::backend) fn members(group: Pid, mark: Mark, is_known: impl Fn(&Stat) -> bool) -> Vec<Stat> {
        let marked = |stat: &Stat| mark_of(stat.pid) == Some(mark);
        procfs::processes().filter(|stat| stat.group == group || is_known(stat) || marked(stat)).collect()
    }

    /// Kills the model servers that a gateway which no longer lives has left behind, with all their children, and
    /// waits until they are gone (10 seconds at the most). Says which it found. Those of a gateway that lives are
    /// left alone, and so is everything that was started elsewhere. Blocks; call it before anything is loaded.
    pub fn reap_leftovers() -> Vec<u32> {
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        let mut pause = Duration::from_millis(2);
        loop {
            let leftovers = leftovers();
            if leftovers.is_empty() {
                return found;
            }
            for stat in leftovers {
                let pid = stat.pid.as_raw().unsigned_abs();
                if !found.contains(&pid) {
                    tracing::warn!(pid, "killing a model server that a dead gateway has left behind");
                    found.push(pid);
                }
                // One that has ended meanwhile is what we want.
                let _ = kill(stat.pid, Signal::SIGKILL);
            }
            if Instant::now() > deadline {
                tracing::error!("some of them do not die; their memory stays taken");
                return found;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn leftovers() -> Vec<Stat> {
        // This process may itself have been started from inside a model server.
        let mut spared = vec![getpid()];
        while let Some(stat) = spared.last().and_then(|&pid| Stat::of(pid)).filter(|stat| stat.parent.as_raw() > 0) {
            spared.push(stat.parent);
        }
        procfs::processes()
            .filter(|stat| !spared.contains(&stat.pid))
            .filter(|stat| mark_of(stat.pid).is_some_and(|mark| mark.owner.is_dead()))
            .collect()
    }

    fn mark_of(pid: Pid) -> Option<Mark> {
        procfs::env_of(pid, VARIABLE)?.parse().ok()
    }
}

#[cfg(target_os = "linux")]
pub(super) use scan::members;
pub use scan::reap_leftovers;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::ExitStatusExt,
        process::{Child, Command, Stdio},
    };

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    use super::*;

    const NO_GROUP: Pid = Pid::from_raw(i32::MAX);

    /// A shell that has started a child of its own, in the mark's name; both pids.
    fn family(mark: &Mark) -> (Child, u32) {
        let mut shell = Command::new("sh")
            .args(["-c", "setsid sleep 60 & echo $!; wait"])
            .env(VARIABLE, mark.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (shell, line.trim().parse().unwrap())
    }

    #[test]
    fn marks_survive_the_environment() {
        let mark = Mark::next();
        assert_ne!(mark, Mark::next());
        assert_eq!(mark.to_string().parse(), Ok(mark));
        assert!("1-2-3".parse::<Mark>().is_err());
        assert!("1-99999999999-3-4".parse::<Mark>().is_err());
    }

    #[test]
    fn kills_what_a_dead_owner_left_and_nothing_else() {
        let mut past = Mark::next();
        past.owner.start -= 1; // The same pid, but of a process that was there before.
        let mut elsewhere = past;
        elsewhere.owner.namespace += 1;
        let own = Mark::next();
        let (mut orphan, orphans_child) = family(&past);
        let mut spared = [family(&own), family(&elsewhere)];

        let found = reap_leftovers();

        assert!(found.contains(&orphan.id()) && found.contains(&orphans_child), "{found:?}");
        assert_eq!(orphan.wait().unwrap().signal(), Some(9));
        assert!(members(NO_GROUP, past, |_| false).is_empty());
        assert_eq!(members(NO_GROUP, own, |_| false).len(), 2, "a mark finds children in other sessions");
        for (shell, child) in &mut spared {
            assert!(!found.contains(&shell.id()) && !found.contains(child));
            assert_eq!(shell.try_wait().unwrap(), None);
            kill(Pid::from_raw(i32::try_from(*child).unwrap()), Signal::SIGKILL).unwrap();
            shell.wait().unwrap();
        }
    }
}
