//! What goes wrong, on purpose.

use std::{
    fmt,
    io::{self, Write},
    process::{Child, Command},
    str::FromStr,
    time::Duration,
};

/// The help text of `--fail`.
pub(super) const HELP: &str = "\
Something that goes wrong; repeatable.

For the whole server:
  exit-at-start[=CODE]    print an error and exit with CODE (1) before listening
  never-healthy           /health stays 503
  exit-after[=N]          exit by itself right after N (1) answers
  ignore-sigterm          only SIGKILL ends it
  stderr-spam[=N]         N (100) lines a second on stderr
  worker                  start a child process that holds stdout and outlives its parent

For each request, also by the header x-demo-fail:
  error[=STATUS]          answer with STATUS (500)
  hang                    never answer
  stall[=N]               fall silent after N (1) tokens
  cut[=N]                 close the connection after N (1) tokens
  crash[=N]               exit as if killed after N (1) tokens";

/// A failure mode, written `MODE` or `MODE=N`; `--help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// `exit-at-start[=CODE]`: print an error and exit before listening.
    ExitAtStart(i32),
    /// `never-healthy`: loading never ends.
    NeverHealthy,
    /// `exit-after[=N]`: exit right after N answers.
    ExitAfter(u64),
    /// `ignore-sigterm`: only SIGKILL ends it.
    IgnoreSigterm,
    /// `stderr-spam[=N]`: N lines a second on stderr.
    StderrSpam(u32),
    /// `worker`: start a child process that outlives its parent.
    Worker,
    /// `error[=STATUS]`: answer with that status.
    Error(u16),
    /// `hang`: never answer.
    Hang,
    /// `stall[=N]`: fall silent after N tokens.
    Stall(u32),
    /// `cut[=N]`: close the connection after N tokens.
    Cut(u32),
    /// `crash[=N]`: exit as if killed after N tokens.
    Crash(u32),
}

impl FromStr for Fail {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mode, value) = match text.trim().split_once('=') {
            Some((mode, value)) => (mode, Some(value)),
            None => (text.trim(), None),
        };
        fn number<T: FromStr>(value: Option<&str>, default: T) -> Result<T, String> {
            value.map_or(Ok(default), |value| value.parse().map_err(|_| format!("'{value}' is not a fitting number")))
        }
        let fail = match mode {
            "exit-at-start" => Self::ExitAtStart(number(value, 1)?),
            "exit-after" => Self::ExitAfter(number(value, 1)?),
            "stderr-spam" => Self::StderrSpam(number(value, 100)?),
            "error" => Self::Error(match number(value, 500)? {
                status @ 200..=599 => status,
                status => return Err(format!("'{status}' is not a status from 200 to 599")),
            }),
            "stall" => Self::Stall(number(value, 1)?),
            "cut" => Self::Cut(number(value, 1)?),
            "crash" => Self::Crash(number(value, 1)?),
            "never-healthy" | "ignore-sigterm" | "worker" | "hang" if value.is_some() => {
                return Err(format!("{mode} takes no number"));
            }
            "never-healthy" => Self::NeverHealthy,
            "ignore-sigterm" => Self::IgnoreSigterm,
            "worker" => Self::Worker,
            "hang" => Self::Hang,
            _ => return Err(format!("unknown failure mode '{mode}'; see --help")),
        };
        Ok(fail)
    }
}

/// The failure modes in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Fails(Vec<Fail>);

impl Fails {
    pub(super) fn new(fails: impl IntoIterator<Item = Fail>) -> Self {
        Self(fails.into_iter().collect())
    }

    /// Reads a header's or body's comma-separated list.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        text.split(',').filter(|mode| !mode.trim().is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }

    fn find<T>(&self, pick: impl Fn(Fail) -> Option<T>) -> Option<T> {
        self.0.iter().copied().find_map(pick)
    }

    pub(super) fn exit_at_start(&self) -> Option<i32> {
        self.find(|fail| if let Fail::ExitAtStart(code) = fail { Some(code) } else { None })
    }

    pub(super) fn never_healthy(&self) -> bool {
        self.0.contains(&Fail::NeverHealthy)
    }

    pub(super) fn exit_after(&self) -> Option<u64> {
        self.find(|fail| if let Fail::ExitAfter(answers) = fail { Some(answers) } else { None })
    }

    pub(super) fn ignores_sigterm(&self) -> bool {
        self.0.contains(&Fail::IgnoreSigterm)
    }

    pub(super) fn stderr_spam(&self) -> Option<u32> {
        self.find(|fail| if let Fail::StderrSpam(rate) = fail { Some(rate) } else { None })
    }

    pub(super) fn error(&self) -> Option<u16> {
        self.find(|fail| if let Fail::Error(status) = fail { Some(status) } else { None })
    }

    pub(super) fn hangs(&self) -> bool {
        self.0.contains(&Fail::Hang)
    }

    /// What goes wrong once `sent` tokens are out.
    pub(super) fn after_tokens(&self, sent: u32) -> Option<Fail> {
        self.find(|fail| match fail {
            Fail::Stall(n) | Fail::Cut(n) | Fail::Crash(n) if n == sent => Some(fail),
            _ => None,
        })
    }

    /// A process like an engine's worker: in the server's group, with its pipes, and not gone when it is.
    pub(super) fn spawn_worker(&self) -> io::Result<Option<Child>> {
        if !self.0.contains(&Fail::Worker) {
            return Ok(None);
        }
        let child = Command::new("sleep").arg("86400").spawn()?;
        tell(format_args!("worker {}", child.id()));
        Ok(Some(child))
    }
}

/// Writes `rate` lines a second to stderr, for ever.
pub(super) async fn spam_stderr(rate: u32) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
    for line in 1_u64.. {
        ticks.tick().await;
        say(format_args!("line {line} of the noise that --fail stderr-spam asked for"));
    }
}

/// A line on stderr. Nobody has to listen: whoever started the server may have closed the pipe.
pub(super) fn say(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "demo-backend: {message}");
}

/// A line on stdout, for programs.
pub(super) fn tell(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{message}");
}

/// Ends the process without any goodbye, as a crash does.
pub(super) fn crash(why: &str) -> ! {
    say(format_args!("fatal: {why}"));
    std::process::exit(139)
}
