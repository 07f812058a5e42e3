//! The one thread that starts every child process.
//!
//! Linux kills a child with `PR_SET_PDEATHSIG` when the *thread* that started it ends, not the process. Worker threads
//! of a runtime come and go, so children are started from a thread that lives exactly as long as the process.

use std::{
    io,
    sync::{LazyLock, mpsc},
    thread,
};

use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

struct Job {
    command: Command,
    /// The runtime that reaps the child.
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Holds at most one job per supervisor, since each waits for its answer.
static JOBS: LazyLock<io::Result<mpsc::Sender<Job>>> = LazyLock::new(|| {
    let (jobs, inbox) = mpsc::channel();
    thread::Builder::new().name("spawner".to_owned()).spawn(move || spawn_all(inbox))?;
    Ok(jobs)
});

/// Starts the command so that it is killed when this process dies, however it dies. Must be called inside a runtime.
pub(super) async fn spawn(mut command: Command) -> io::Result<Child> {
    die_with_parent(&mut command);
    let jobs = JOBS.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
    let (reply, answer) = oneshot::channel();
    jobs.send(Job { command, runtime: Handle::current(), reply }).map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

fn spawn_all(inbox: mpsc::Receiver<Job>) {
    for Job { mut command, runtime, reply } in inbox {
        let _inside = runtime.enter();
        // A caller that is gone drops the child, which kills it.
        let _ = reply.send(command.spawn());
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts processes has ended")
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a signal on the parent's death can only be asked for in the child, before exec")]
fn die_with_parent(command: &mut Command) {
    use nix::{
        errno::Errno,
        sys::{prctl, signal::Signal},
        unistd::{getpid, getppid},
    };

    let parent = getpid();
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed: it makes two
    // system calls and builds errors from numbers, without allocating or taking a lock.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the line above; then nobody would send the signal.
            if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}
