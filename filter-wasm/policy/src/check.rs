//! From settings to a policy, or to everything that is wrong with them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Display,
    sync::Arc,
    time::UNIX_EPOCH,
};

use crate::{
    Band, Policy, Scope,
    digest::{Digest, DigestMap},
    headers::Names,
    policy::{Grant, Models, NEVER, Tier},
    settings::{
        AnonymousSettings, HeaderSettings, KeySettings, LimitSettings, PolicySettings, PrioritySetting, Problem,
        TierSettings,
    },
};

/// Problems beyond this many are only counted.
const MAX_PROBLEMS: usize = 100;
/// Tiers become labels of metrics, which want to be few.
const MAX_TIERS: usize = 64;
/// Longest name of a tenant, a tier or an objective, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Longest list of models of one key, in bytes as a header.
const MAX_MODELS_BYTES: usize = 4096;

impl Policy {
    /// Checks settings whole and makes a policy of them.
    ///
    /// # Errors
    /// Every problem there is, up to a hundred.
    pub fn new(settings: PolicySettings) -> Result<Self, Vec<Problem>> {
        let mut check = Check::default();
        let PolicySettings {
            tiers,
            keys,
            anonymous,
            allow_plain,
            forward_key,
            headers,
            objectives,
            swap_affinity_bonus: bonus,
        } = settings;
        check.headers(&headers);
        if !(0..Band::SPACING).contains(&bonus) {
            check.problem("swapAffinityBonus", format!("{bonus} is out of range"), "give a number from 0 to 99");
        }
        let bonus = bonus.clamp(0, Band::SPACING - 1);
        let tiers = check.tiers(tiers, bonus);
        let objectives = [
            ("objectives.batch", objectives.batch),
            ("objectives.normal", objectives.normal),
            ("objectives.interactive", objectives.interactive),
        ]
        .map(|(path, name)| name.map(|name| check.header_value(path, name)));
        let anonymous = anonymous.and_then(|settings| check.anonymous(settings, &tiers));
        let keys = check.keys(keys, allow_plain, &tiers);
        check.finish()?;
        Ok(Self {
            tiers: tiers.into_values().map(|known| known.tier).collect(),
            keys,
            anonymous: anonymous.map(Arc::new),
            names: Names::new(&headers, forward_key),
            objectives,
        })
    }
}

/// A tier with what keys inherit from it.
struct KnownTier {
    tier: Arc<Tier>,
    max_band: Band,
    limits: LimitSettings,
}

type KnownTiers = BTreeMap<String, KnownTier>;

#[derive(Default)]
struct Check {
    problems: Vec<Problem>,
    more: usize,
}

impl Check {
    fn problem(&mut self, path: impl Into<String>, message: impl Into<String>, cure: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { path: path.into(), message: message.into(), cure: cure.into() });
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Result<(), Vec<Problem>> {
        if self.more > 0 {
            let message = format!("{} more problems", self.more);
            self.problems.push(Problem {
                path: "settings".into(),
                message,
                cure: "mend the first hundred, then check again".into(),
            });
        }
        if self.problems.is_empty() { Ok(()) } else { Err(self.problems) }
    }

    fn tiers(&mut self, tiers: BTreeMap<String, TierSettings>, bonus: i64) -> KnownTiers {
        if tiers.len() > MAX_TIERS {
            self.problem("tiers", format!("{} tiers", tiers.len()), format!("use at most {MAX_TIERS}"));
        }
        let highest = Band::SPACING - 1 - bonus;
        let mut known = KnownTiers::new();
        for (name, TierSettings { offset, max_band, limits }) in tiers {
            let path = format!("tiers.{name}");
            if !is_label(&name) {
                self.problem(&*path, "not a name for a tier", "use 1 to 64 letters, digits, `-` and `_`");
            }
            if !(0..=highest).contains(&offset) {
                self.problem(
                    format!("{path}.offset"),
                    if offset < 0 {
                        format!("{offset} would push requests into the band below")
                    } else {
                        format!(
                            "{offset} with swapAffinityBonus {bonus} reaches the band above, {} away",
                            Band::SPACING
                        )
                    },
                    format!("give a number from 0 to {highest}"),
                );
            }
            self.limits(&path, limits);
            let offset = offset.clamp(0, Band::SPACING - 1);
            let stamps = Band::ALL.map(|band| (band.anchor() + offset).to_string().into());
            let tier = Arc::new(Tier { name: name.as_str().into(), offset, stamps });
            known.insert(name, KnownTier { tier, max_band: max_band.unwrap_or(Band::Interactive), limits });
        }
        known
    }

    fn keys(&mut self, keys: Vec<KeySettings>, allow_plain: bool, tiers: &KnownTiers) -> DigestMap<Arc<Grant>> {
        let mut known = DigestMap::with_capacity_and_hasher(keys.len(), Default::default());
        for (index, key) in keys.into_iter().enumerate() {
            let path = Place::Key(index);
            let digest = self.digest(path, &key, allow_plain);
            let grant = self.grant(path, key, tiers);
            let (Some(digest), Some(mut grant)) = (digest, grant) else { continue };
            grant.mark = digest.mark();
            if known.insert(digest, Arc::new(grant)).is_some() {
                self.problem(path.to_string(), "this key is listed twice", "remove one of the two");
            }
        }
        known
    }

    fn digest(&mut self, path: Place, key: &KeySettings, allow_plain: bool) -> Option<Digest> {
        match (&key.sha256, &key.key) {
            (Some(sha256), None) => {
                let digest = sha256.as_digest();
                if digest.is_none() {
                    self.problem(
                        format!("{path}.sha256"),
                        "not a SHA-256 in hex, which has 64 digits",
                        "paste what `switchyard keys hash` prints",
                    );
                }
                digest
            }
            (None, Some(_)) if !allow_plain => {
                self.problem(
                    format!("{path}.key"),
                    "a key in plain text",
                    "write `sha256:` with what `switchyard keys hash` prints, or for a trial set `allowPlain: true`",
                );
                None
            }
            (None, Some(key)) => {
                let key = key.to_text();
                if key.is_empty() || key.len() > crate::MAX_KEY_BYTES || key.trim_ascii() != key {
                    self.problem(
                        format!("{path}.key"),
                        "a key that no request can carry",
                        format!("use 1 to {} bytes without white space around them", crate::MAX_KEY_BYTES),
                    );
                }
                Some(Digest::of(key.as_bytes()))
            }
            (None, None) => {
                self.problem(
                    path.to_string(),
                    "`sha256` is missing",
                    "run `switchyard keys new` for a key and its YAML",
                );
                None
            }
            (Some(_), Some(_)) => {
                self.problem(path.to_string(), "both `sha256` and `key`", "keep `sha256`");
                None
            }
        }
    }

    fn anonymous(&mut self, settings: AnonymousSettings, tiers: &KnownTiers) -> Option<Grant> {
        let AnonymousSettings { tier, tenant, priority, max_band, models, scope, limits } = settings;
        let tenant = tenant.unwrap_or_else(|| "anonymous".into());
        let settings = KeySettings { tier, tenant, priority, max_band, models, scope, limits, ..Default::default() };
        self.grant(Place::Anonymous, settings, tiers)
    }

    fn grant(&mut self, path: Place, settings: KeySettings, tiers: &KnownTiers) -> Option<Grant> {
        let KeySettings { name, tenant, tier, priority, max_band, expires, models, scope, limits, .. } = settings;
        self.limits(path, limits);
        let tenant = self.header_value(format!("{path}.tenant"), tenant);
        let name = name.map(|name| self.header_value(format!("{path}.name"), name));
        let expires = expires.map_or(NEVER, |text| self.expiry(path, &text));
        let scopes = self.scopes(path, scope);
        let models = models.and_then(|models| self.models(path, models));
        let Some(known) = tiers.get(&tier) else {
            let names: Vec<_> = tiers.keys().map(String::as_str).collect();
            let cure = format!("use one of: {}", names.join(", "));
            let message = if tier.is_empty() { "a tier is missing" } else { "no such tier under `tiers`" };
            self.problem(format!("{path}.tier"), message, cure);
            return None;
        };
        let max_band = max_band.unwrap_or(known.max_band);
        let default_band = self.default_band(path, priority, max_band);
        let limits = LimitSettings {
            waiting: limits.waiting.or(known.limits.waiting),
            running: limits.running.or(known.limits.running),
        };
        let tier = Arc::clone(&known.tier);
        Some(Grant { tenant, tier, name, default_band, max_band, limits, expires, mark: 0, scopes, models })
    }

    fn default_band(&mut self, path: Place, priority: Option<PrioritySetting>, max_band: Band) -> Band {
        let Some(PrioritySetting(text)) = priority else { return Band::Normal.min(max_band) };
        let path = || format!("{path}.priority");
        match Band::asked(text.as_bytes()) {
            None => self.problem(path(), "not a priority", "give `interactive`, `normal`, `batch` or a whole number"),
            Some(band) if band > max_band => self.problem(
                path(),
                format!("`{}` is above the highest band allowed, `{}`", band.as_str(), max_band.as_str()),
                "lower it, or raise `maxBand`",
            ),
            Some(band) => return band,
        }
        max_band
    }

    fn scopes(&mut self, path: Place, scope: Option<Vec<Scope>>) -> u8 {
        let scope = scope.unwrap_or_else(|| vec![Scope::Inference]);
        if scope.is_empty() {
            self.problem(
                format!("{path}.scope"),
                "an empty list allows nothing",
                "name `inference`, `read` or `admin`, or leave `scope` out for `[inference]`",
            );
        }
        scope.into_iter().fold(0, |bits, scope| bits | 1 << scope as u8)
    }

    fn models(&mut self, path: Place, models: Vec<String>) -> Option<Models> {
        let path = format!("{path}.models");
        if models.is_empty() {
            self.problem(&*path, "an empty list allows no model", "name one, or leave `models` out for all");
        }
        for (index, model) in models.iter().enumerate() {
            if !is_header_value(model) || model.contains(',') {
                self.problem(
                    format!("{path}[{index}]"),
                    "not a model's name that a header can carry",
                    "use printable ASCII without commas and without spaces around it",
                );
            }
        }
        let mut sorted: Vec<Box<str>> = models.into_iter().map(String::into_boxed_str).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let stamp = sorted.join(",").into_boxed_str();
        if stamp.len() > MAX_MODELS_BYTES {
            let message = format!("{} bytes of names, which go into one header", stamp.len());
            self.problem(&*path, message, format!("stay within {MAX_MODELS_BYTES}"));
        }
        Some(Models { sorted: sorted.into(), stamp })
    }

    fn expiry(&mut self, path: Place, text: &str) -> i64 {
        let text = if text.len() == "2027-01-31".len() { format!("{text}T00:00:00Z") } else { text.into() };
        let moment = humantime::parse_rfc3339(&text).ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        moment.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or_else(|| {
            let cure = "write it as 2027-01-31T12:00:00Z, or 2027-01-31 for the start of that day in UTC";
            self.problem(format!("{path}.expires"), "not a time", cure);
            NEVER
        })
    }

    fn limits(&mut self, path: impl Display, limits: LimitSettings) {
        for (name, value) in [("waiting", limits.waiting), ("running", limits.running)] {
            if value == Some(0) {
                let cure = "give 1 or more, or leave it out for no bound";
                self.problem(format!("{path}.limits.{name}"), "0 would refuse every request", cure);
            }
        }
    }

    fn header_value(&mut self, path: impl Into<String>, text: String) -> Box<str> {
        if text.len() > MAX_NAME_BYTES || !is_header_value(&text) {
            let message = if text.is_empty() { "empty or missing" } else { "not a text that a header can carry" };
            let cure = format!("use 1 to {MAX_NAME_BYTES} printable ASCII characters without spaces around them");
            self.problem(path, message, cure);
        }
        text.into_boxed_str()
    }

    fn headers(&mut self, headers: &HeaderSettings) {
        let HeaderSettings { priority, tenant, objective, tier, models, model, older_twins: _, strip } = headers;
        let named = [
            ("priority", priority),
            ("tenant", tenant),
            ("objective", objective),
            ("tier", tier),
            ("models", models),
            ("model", model),
        ];
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (field, name) in named {
            let path = format!("headers.{field}");
            self.header_name(&path, name);
            match seen.entry(name.to_ascii_lowercase().replace('_', "-")) {
                Entry::Occupied(other) => {
                    let message = format!("the same header as headers.{}", other.get());
                    self.problem(path, message, "give each its own name");
                }
                Entry::Vacant(free) => {
                    free.insert(field);
                }
            }
        }
        for (index, name) in strip.iter().enumerate() {
            self.header_name(&format!("headers.strip[{index}]"), name);
        }
    }

    fn header_name(&mut self, path: &str, name: &str) {
        /// Headers that carry the message itself or the key.
        const TAKEN: [&str; 11] = [
            "api-key",
            "authorization",
            "connection",
            "content-length",
            "content-type",
            "expect",
            "host",
            "te",
            "transfer-encoding",
            "upgrade",
            "x-api-key",
        ];
        if !is_token(name) {
            self.problem(path, "not a header's name", "use letters, digits and hyphens");
        } else if TAKEN.contains(&name.to_ascii_lowercase().as_str()) {
            self.problem(path, "a header with a meaning of its own", "choose another name, such as one with `x-`");
        }
    }
}

/// Where a grant is written; a text only when something is wrong with it.
#[derive(Clone, Copy)]
enum Place {
    Key(usize),
    Anonymous,
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key(index) => write!(f, "keys[{index}]"),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

fn is_label(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

fn is_token(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_header_value(text: &str) -> bool {
    !text.is_empty() && text.trim_ascii() == text && text.bytes().all(|b| matches!(b, b' '..=b'~'))
}
