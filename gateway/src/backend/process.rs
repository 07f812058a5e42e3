//! A child process and everything it starts: how it begins, and how all of it ends.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::{
    net::unix::pipe,
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    leftovers::{self, Mark},
    logs::LogWriter,
    spawner,
};
use crate::config::Launch;

/// How long a process that has ended may take to be seen gone before a word about it is logged.
const SLOW_DEATH: Duration = Duration::from_secs(10);
/// How long to read on for output that is still on its way when its writers are gone.
const LAST_OUTPUT: Duration = Duration::from_millis(300);

/// A child process, leader of its own process group. Dropped, all of the group is killed, but not waited for.
pub(super) struct Process {
    child: Child,
    group: Pid,
    mark: Mark,
    /// What lived of it at the last look.
    members: Vec<Member>,
    reader: JoinHandle<()>,
    log: LogWriter,
    gone: bool,
}

/// A process that belongs to a model server.
#[derive(Clone, Copy)]
struct Member {
    pid: Pid,
    /// With the pid, it names a process for good.
    start: u64,
    /// Whether it is still in the group.
    inside: bool,
}

impl Process {
    /// Starts the command. Its output goes to the log.
    pub(super) async fn start(argv: &[String], env: &[(String, String)], log: LogWriter) -> io::Result<Self> {
        let [program, arguments @ ..] = argv else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
        };
        // One pipe for both streams keeps their lines in order.
        let (output, input) = io::pipe()?;
        let output = pipe::Receiver::from_owned_fd(OwnedFd::from(output))?;
        let mark = Mark::next();
        let mut command = Command::new(program);
        command
            .args(arguments)
            // Keeps programs that rewrite their title, as vLLM's workers do, from overwriting the mark with it.
            .env("SPT_NOENV", "1")
            .envs(env.iter().map(|(name, value)| (name, value)))
            .env(leftovers::VARIABLE, mark.to_string())
            .stdin(Stdio::null())
            .stdout(input.try_clone()?)
            .stderr(input)
            .process_group(0)
            .kill_on_drop(true);
        let child = spawner::spawn(command).await?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let group = Pid::from_raw(pid.ok_or_else(|| io::Error::other("it has no process id"))?);
        let reader = tokio::spawn(log.clone().copy(output));
        Ok(Self { child, group, mark, members: Vec::new(), reader, log, gone: false })
    }

    /// The leader's pid, which is also the group's.
    pub(super) fn id(&self) -> u32 {
        self.group.as_raw().unsigned_abs()
    }

    /// Waits until the leader has ended, and reaps it. What it started may live on. Can be cancelled.
    pub(super) async fn exited(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Whether the leader has ended.
    pub(super) fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the process to end, waits for `grace`, then kills it. Returns when it and everything it started is gone.
    /// `hurry` cuts the grace short.
    pub(super) async fn stop(mut self, launch: &Launch, grace: Duration, hurry: &mut watch::Receiver<bool>) {
        let polite = async {
            self.ask_to_end(launch).await;
            self.wait_until_gone().await;
        };
        let ended = tokio::select! {
            ended = timeout(grace, polite) => ended.is_ok(),
            () = told(hurry) => false,
        };
        if !ended {
            self.log.note("still there, killing it");
        }
        self.kill().await;
    }

    /// Kills the process and everything it started; returns when all of it is gone.
    pub(super) async fn kill(mut self) {
        let began = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            self.signal(Signal::SIGKILL).await;
            // A worker that was just being started can escape one round, never all.
            if timeout(pause, self.wait_until_gone()).await.is_ok() {
                break;
            }
            pause = (pause * 2).min(SLOW_DEATH);
            if began.elapsed() >= SLOW_DEATH {
                let (pid, model) = (self.id(), self.log.model());
                tracing::warn!(pid, model, "killed, but the kernel has not let go of it; its memory stays taken");
            }
        }
        self.gone = true;
        // Something that took off the mark and left the group may hold the pipe open for ever.
        let _ = timeout(LAST_OUTPUT, &mut self.reader).await;
    }

    async fn ask_to_end(&mut self, launch: &Launch) {
        if let Some(argv) = &launch.stop_argv {
            let pid = self.id().to_string();
            let argv: Vec<String> = argv.iter().map(|part| part.replace("${PID}", &pid)).collect();
            match run(&argv, &launch.env, self.log.clone()).await {
                Ok(status) if status.success() => return,
                Ok(status) => self.log.note(&format!("the stop command {}; sending SIGTERM", describe(status))),
                Err(error) => self.log.note(&format!("cannot run the stop command: {error}; sending SIGTERM")),
            }
        }
        self.signal(Signal::SIGTERM).await;
    }

    /// Reaches the group, and marked processes that have left it.
    async fn signal(&mut self, signal: Signal) {
        self.look().await;
        // The leader's pid cannot be another's while the leader is not reaped or its group has members.
        if self.child.id().is_some() || self.members.iter().any(|member| member.inside) {
            let _ = killpg(self.group, signal);
        }
        for member in self.members.iter().filter(|member| !member.inside) {
            let _ = kill(member.pid, signal);
        }
    }

    async fn wait_until_gone(&mut self) {
        // An error says that it is reaped already.
        let _ = self.child.wait().await;
        let mut pause = Duration::from_millis(2);
        loop {
            self.look().await;
            if self.members.is_empty() {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Looks what lives of it.
    async fn look(&mut self) {
        let (group, mark, reaped) = (self.group, self.mark, self.child.id().is_none());
        // A look may be broken off, so that it takes nothing.
        let known = self.members.clone();
        let members = tokio::task::spawn_blocking(move || {
            if reaped {
                reap_adopted(group);
            }
            members(group, mark, &known)
        });
        // Only a runtime that shuts down cancels it.
        self.members = members.await.unwrap_or_default();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.gone {
            let _ = killpg(self.group, Signal::SIGKILL);
        }
        self.reader.abort();
    }
}

/// Runs a command to its end; dropped, it is killed.
async fn run(argv: &[String], env: &[(String, String)], log: LogWriter) -> io::Result<ExitStatus> {
    Process::start(argv, env, log).await?.exited().await
}

/// Waits until the flag is set, or nobody is left to set it.
pub(super) async fn told(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|&set| set).await;
}

/// How a process ended, after "it".
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("exited with status {code}"),
        (_, Some(Ok(Signal::SIGKILL))) => "was killed (SIGKILL; if nobody did, memory ran out)".to_owned(),
        (_, Some(Ok(signal))) => format!("was ended by {signal}"),
        _ => format!("ended ({status})"),
    }
}

/// As a container's first process, the gateway inherits the orphans of the group and has to reap them.
fn reap_adopted(group: Pid) {
    let anyone = Pid::from_raw(-group.as_raw());
    while waitpid(anyone, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status != WaitStatus::StillAlive) {}
}

#[cfg(target_os = "linux")]
fn members(group: Pid, mark: Mark, known: &[Member]) -> Vec<Member> {
    let is_known =
        |stat: &super::procfs::Stat| known.iter().any(|member| (member.pid, member.start) == (stat.pid, stat.start));
    let members = leftovers::members(group, mark, is_known).into_iter();
    members.map(|stat| Member { pid: stat.pid, start: stat.start, inside: stat.group == group }).collect()
}

#[cfg(not(target_os = "linux"))]
fn members(group: Pid, _: Mark, _: &[Member]) -> Vec<Member> {
    match killpg(group, None) {
        Err(nix::errno::Errno::ESRCH) => Vec::new(),
        _ => vec![Member { pid: group, start: 0, inside: true }],
    }
}
