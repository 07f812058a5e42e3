//! The little that is needed of `/proc`.

use std::fs;

use nix::unistd::Pid;

/// One line of `/proc/PID/stat`, as far as needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: Pid,
    pub(super) parent: Pid,
    pub(super) group: Pid,
    /// Clock ticks from boot to its start: with the pid, it names a process for good.
    pub(super) start: u64,
    /// Holds no memory any more, and only waits for its parent to take notice.
    pub(super) dead: bool,
}

impl Stat {
    /// `None` when there is no such process.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The second field is the program's name in brackets, which may itself hold spaces and brackets.
        let (pid, rest) = line.split_once(" (")?;
        let (_, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
        // A process whose first thread has ended is a zombie too, but lives on in the others.
        let dead = match *fields.first()? {
            "Z" => number(17)? <= 1,
            state => state == "X",
        };
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?),
            parent: Pid::from_raw(number(1)?),
            group: Pid::from_raw(number(2)?),
            start: fields.get(19)?.parse().ok()?,
            dead,
        })
    }
}

/// The living processes, of every user: a command may change its own with `runuser` or the like.
pub(super) fn processes() -> impl Iterator<Item = Stat> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Stat::of(Pid::from_raw(pid)).filter(|stat| !stat.dead)
    })
}

/// The value of a variable in the environment that the process was started with; `None` also where that may not be
/// seen, as of another user's process.
pub(super) fn env_of(pid: Pid, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environ.split(|&byte| byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// The number of this process's pid namespace: pids mean nothing outside of it.
pub(super) fn pid_namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_line() {
        let pid = nix::unistd::getpid();
        let stat = Stat::of(pid).unwrap();
        assert_eq!((stat.pid, stat.parent), (pid, nix::unistd::getppid()));
        assert_eq!(stat.group, nix::unistd::getpgrp());
        assert!(!stat.dead && stat.start > 0);
        assert!(processes().any(|process| process == stat));
    }

    #[test]
    fn a_name_may_hold_anything() {
        let line = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 1 5 5 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 42 0 0")
        };
        let stat = Stat::parse(&line("a) Z (b", "S", 1)).unwrap();
        assert_eq!(
            stat,
            Stat { pid: Pid::from_raw(7), parent: Pid::from_raw(1), group: Pid::from_raw(5), start: 42, dead: false }
        );
        assert!(Stat::parse(&line("x", "Z", 1)).unwrap().dead);
        assert!(!Stat::parse(&line("x", "Z", 3)).unwrap().dead, "its other threads still hold its memory");
        assert_eq!(Stat::parse("7 (cut"), None);
    }

    #[test]
    fn reads_an_environment() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(env_of(nix::unistd::getpid(), "PATH"), Some(path));
        assert_eq!(env_of(nix::unistd::getpid(), "PAT"), None);
    }
}
