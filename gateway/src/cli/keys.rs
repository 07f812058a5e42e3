//! `switchyard keys`: makes keys and their digests. A key never stands in an argument, where a shell's history and
//! every user's list of processes would show it.

use std::{
    fmt::Write,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::Subcommand;
use switchyard::config;

use super::{fail, print};

#[derive(Subcommand)]
pub(super) enum KeysCommand {
    /// Make a key: prints it this once, and the YAML to paste under `keys:`.
    New {
        /// Whom its requests count for.
        #[arg(long)]
        tenant: String,
        /// Its tier, as under `tiers:` (free, pro and max unless configured).
        #[arg(long)]
        tier: String,
        /// What logs call it.
        #[arg(long)]
        name: Option<String>,
    },
    /// Print the SHA-256 of the key on standard input, for `sha256:`.
    Hash,
    /// Print keys and tiers as the Envoy filter takes them: JSON, with digests alone.
    Export {
        /// A configuration file, or a file of keys alone as `tiersFile` names it.
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
}

pub(super) fn run(command: KeysCommand) -> ExitCode {
    match command {
        KeysCommand::New { tenant, tier, name } => new(&tenant, &tier, name.as_deref()),
        KeysCommand::Hash => hash(),
        KeysCommand::Export { config } => export(&config),
    }
}

fn new(tenant: &str, tier: &str, name: Option<&str>) -> ExitCode {
    let mut secret = [0; 32];
    if let Err(error) = getrandom::fill(&mut secret) {
        return fail(format_args!("the system gives no random numbers: {error}"));
    }
    let key = format!("sk-sy-{}", URL_SAFE_NO_PAD.encode(secret));
    let digest = switchyard_policy::hash_key(key.as_bytes());
    let mut yaml = String::new();
    for (setting, value) in [("name", name), ("tenant", Some(tenant)), ("tier", Some(tier))] {
        if let Some(value) = value {
            // A JSON string is a YAML string, whatever is in it.
            let _ = writeln!(yaml, "  {setting}: {}", serde_json::Value::from(value));
        }
    }
    print(format_args!(
        "{key}\n\n# Paste this under `keys:`. The key above is not shown again.\n- sha256: {digest}\n{yaml}"
    ))
}

fn hash() -> ExitCode {
    let mut key = Vec::new();
    let limit = switchyard_policy::MAX_KEY_BYTES as u64 + 2;
    if let Err(error) = std::io::stdin().lock().take(limit).read_to_end(&mut key) {
        return fail(format_args!("cannot read the key from standard input: {error}"));
    }
    let key = key.trim_ascii();
    match key.len() {
        0 => fail(format_args!("no key on standard input; try: printf %s \"$KEY\" | switchyard keys hash")),
        length if length > switchyard_policy::MAX_KEY_BYTES => {
            fail(format_args!("a key has at most {} bytes", switchyard_policy::MAX_KEY_BYTES))
        }
        _ => print(format_args!("{}\n", switchyard_policy::hash_key(key))),
    }
}

fn export(file: &Path) -> ExitCode {
    let settings = match config::load_keys(file) {
        Ok(settings) => settings,
        Err(problems) => {
            eprint!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    if settings.keys.is_empty() && settings.anonymous.is_none() {
        return fail(format_args!("{} has no `keys:`, so nobody could pass", file.display()));
    }
    match settings.to_json() {
        Ok(json) => print(format_args!("{json}\n")),
        Err(error) => fail(format_args!("{}: {error}", file.display())),
    }
}
