//! The keys that say who is calling. They stand at the top of the configuration file or in a file of their own, which
//! the Envoy filter can read too.

use std::collections::BTreeMap;

use http::HeaderName;
use ipnet::IpNet;
use switchyard_policy::{
    AnonymousSettings, Band, HeaderSettings, KeySettings, LimitSettings, ObjectiveSettings, PolicySettings,
    PrioritySetting, Scope, Secret, TierSettings,
};

use super::{
    kinds::{Flag, OneOf, Text, int, parsed},
    parse,
    reader::{At, Section},
};

/// What the configuration file says of callers.
pub(super) struct CallersFile {
    pub(super) policy: PolicySettings,
    /// The settings of `policy` that are in the file.
    pub(super) given: Vec<At<()>>,
    pub(super) tiers_file: Option<At<String>>,
    pub(super) trust: TrustFile,
}

/// Whose word is taken.
pub(super) struct TrustFile {
    pub(super) cidrs: Vec<At<IpNet>>,
    /// The header that carries a secret.
    pub(super) name: At<HeaderName>,
    pub(super) sha256: Option<At<String>>,
    pub(super) secret: Option<At<String>>,
    /// `header` is there.
    pub(super) header: Option<At<()>>,
}

/// A file of keys alone.
pub(super) struct TiersFile {
    pub(super) policy: PolicySettings,
    /// The header of the priority, where the file names it.
    pub(super) priority: Option<At<()>>,
    pub(super) swap_affinity_bonus: Option<At<i64>>,
}

const BANDS: OneOf<Band> =
    OneOf(&[("interactive", Band::Interactive), ("normal", Band::Normal), ("batch", Band::Batch)]);

const SCOPES: OneOf<Scope> = OneOf(&[("inference", Scope::Inference), ("read", Scope::Read), ("admin", Scope::Admin)]);

/// Reads what is at the top of the configuration file.
pub(super) fn read(s: &mut Section<'_>) -> CallersFile {
    let names = ["keys", "tiers", "anonymous", "allowPlain", "forwardKey", "objectives"];
    let given = names.iter().filter_map(|name| s.place_of(name)).collect();
    CallersFile {
        policy: policy(s),
        given,
        tiers_file: s.opt("tiersFile", "A file that holds all of these, relative to this one.", Text),
        trust: s.section("trust", "From where what requests say of their sender is believed.", trust),
    }
}

/// Reads a file of keys alone.
pub(super) fn read_tiers(s: &mut Section<'_>) -> TiersFile {
    let mut policy = policy(s);
    let mut priority = None;
    policy.headers = s.section("headers", "Names of headers.", |s| {
        priority = s.place_of("priority");
        names(s)
    });
    let bonus = "The scheduler's, for whoever reads this file without it.";
    TiersFile { policy, priority, swap_affinity_bonus: s.opt("swapAffinityBonus", bonus, int(0..=99)) }
}

fn trust(s: &mut Section<'_>) -> TrustFile {
    let cidrs = s.list(
        "cidrs",
        "Networks of the proxies that have found out who is calling.",
        parsed("a network such as 10.0.0.0/8, or an address", parse::network),
    );
    let header = s.place_of("header");
    s.section("header", "A header that such a proxy adds, with a secret in it.", |s| TrustFile {
        cidrs,
        name: s.or("name", "Its name.", parsed("the name of a header", parse::header), "x-switchyard-trust"),
        sha256: s.opt("sha256", "SHA-256 of the secret in hex; `switchyard keys hash` prints it.", Text),
        secret: s.opt("secret", "Or the secret itself, best as ${env.NAME}.", Text),
        header,
    })
}

fn policy(s: &mut Section<'_>) -> PolicySettings {
    let defaults = PolicySettings::default();
    let has_tiers = s.has("tiers");
    let tiers = s.sections("tiers", "Tiers by name; free, pro and max without it.", tier);
    let tiers: BTreeMap<_, _> = tiers.into_iter().map(|(name, tier)| (name.value, tier)).collect();
    PolicySettings {
        tiers: if has_tiers { tiers } else { defaults.tiers },
        keys: s.section_list("keys", "Who each key stands for.", key),
        anonymous: s.opt_section("anonymous", "Requests without a key; refused without it.", anonymous),
        allow_plain: s.or("allowPlain", "Accept `key` in place of `sha256`, for trials.", Flag, false).value,
        forward_key: s.or("forwardKey", "Let the caller's key go on to the model server.", Flag, false).value,
        objectives: s.section("objectives", "llm-d's InferenceObjective of each band.", objectives),
        ..defaults
    }
}

fn tier(s: &mut Section<'_>) -> TierSettings {
    let about = "Added to the band that a request asks for; with swapAffinityBonus below 100.";
    TierSettings { offset: s.or("offset", about, int(0..=99), 0).value, max_band: max_band(s), limits: limits(s) }
}

fn key(s: &mut Section<'_>) -> KeySettings {
    let secret = |at: At<String>| Secret::new(&at.value);
    KeySettings {
        sha256: s.opt("sha256", "SHA-256 of the key in hex; `switchyard keys hash` prints it.", Text).map(secret),
        key: s.opt("key", "The key itself, where allowPlain is true.", Text).map(secret),
        name: text(s, "name", "What to call it."),
        tenant: s.required("tenant", "Whom its requests count for.", Text).map_or_else(String::new, |at| at.value),
        tier: s.required("tier", "Its tier.", Text).map_or_else(String::new, |at| at.value),
        priority: priority(s),
        max_band: max_band(s),
        expires: text(s, "expires", "A date, or a time such as 2030-01-31T12:00:00Z."),
        models: models(s),
        scope: scope(s),
        limits: limits(s),
    }
}

fn anonymous(s: &mut Section<'_>) -> AnonymousSettings {
    AnonymousSettings {
        tier: s.required("tier", "Their tier.", Text).map_or_else(String::new, |at| at.value),
        tenant: text(s, "tenant", "Whom they count for; `anonymous` without it."),
        priority: priority(s),
        max_band: max_band(s),
        models: models(s),
        scope: scope(s),
        limits: limits(s),
    }
}

fn text(s: &mut Section<'_>, key: &'static str, about: &str) -> Option<String> {
    s.opt(key, about, Text).map(|at| at.value)
}

fn priority(s: &mut Section<'_>) -> Option<PrioritySetting> {
    text(s, "priority", "Of requests that ask for none: a band, or a number in it.").map(PrioritySetting)
}

fn max_band(s: &mut Section<'_>) -> Option<Band> {
    s.opt("maxBand", "The most urgent band that may be asked for.", BANDS).map(|at| at.value)
}

fn models(s: &mut Section<'_>) -> Option<Vec<String>> {
    let given = s.has("models");
    let models = s.list("models", "The models that may be used; all without it.", Text);
    given.then(|| models.into_iter().map(|at| at.value).collect())
}

fn scope(s: &mut Section<'_>) -> Option<Vec<Scope>> {
    let given = s.has("scope");
    let scopes = s.list("scope", "What may be done; inference alone without it.", SCOPES);
    given.then(|| scopes.into_iter().map(|at| at.value).collect())
}

fn limits(s: &mut Section<'_>) -> LimitSettings {
    s.section("limits", "Bounds on the requests of one key.", |s| LimitSettings {
        waiting: s.opt("waiting", "That wait.", int(1..=u32::MAX)).map(|at| at.value),
        running: s.opt("running", "That run.", int(1..=u32::MAX)).map(|at| at.value),
    })
}

fn objectives(s: &mut Section<'_>) -> ObjectiveSettings {
    ObjectiveSettings {
        interactive: text(s, "interactive", "For 100 and above."),
        normal: text(s, "normal", "For 0 to 99."),
        batch: text(s, "batch", "For below 0."),
    }
}

/// Which of the keys that [`names`] reads are there, but for `priority`.
pub(super) fn given_names(s: &Section<'_>) -> Vec<At<()>> {
    let names = ["tenant", "objective", "tier", "models", "model", "olderTwins", "strip"];
    names.iter().filter_map(|name| s.place_of(name)).collect()
}

/// Reads the names of the headers that say who is calling.
pub(super) fn names(s: &mut Section<'_>) -> HeaderSettings {
    let defaults = HeaderSettings::default();
    let name = || parsed("the name of a header", parse::header);
    let mut read = |key, about, default: String| s.or(key, about, name(), default).value.as_str().to_owned();
    HeaderSettings {
        priority: read("priority", "Carries a request's priority.", "X-LlamaSwap-Priority".to_owned()),
        tenant: read("tenant", "Carries the tenant.", defaults.tenant),
        objective: read("objective", "Carries the objective, for llm-d.", defaults.objective),
        tier: read("tier", "Carries the tier's name.", defaults.tier),
        models: read("models", "Carries the models of a caller that may not use all.", defaults.models),
        model: read("model", "Names the model, where something in front puts it there.", defaults.model),
        older_twins: s.or("olderTwins", "Write tenant and objective under llm-d's older names too.", Flag, false).value,
        strip: {
            let list = s.list("strip", "Further headers that callers may not send.", name());
            list.into_iter().map(|at| at.value.as_str().to_owned()).collect()
        },
    }
}
