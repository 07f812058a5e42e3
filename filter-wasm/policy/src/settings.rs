//! The settings as written. [`crate::Policy::new`] checks them and makes a policy of them.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::{Band, digest::Digest};

/// Everything the policy can be told. In YAML or JSON, with these names in camel case.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PolicySettings {
    /// Tiers by name. Without any: `free` at 0, `pro` at 1 and `max` at 2.
    pub tiers: BTreeMap<String, TierSettings>,
    /// The keys.
    pub keys: Vec<KeySettings>,
    /// How requests without a key are treated. Not set: refused with 401.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<AnonymousSettings>,
    /// Accept `key:` beside `sha256:`, for trials: whoever reads the file has the keys.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_plain: bool,
    /// Leave the caller's key in the request that goes upstream.
    #[serde(skip_serializing_if = "is_default")]
    pub forward_key: bool,
    /// Names of the headers that are read and written.
    #[serde(skip_serializing_if = "is_default")]
    pub headers: HeaderSettings,
    /// For llm-d: the name of the `InferenceObjective` that stands for each band.
    #[serde(skip_serializing_if = "is_default")]
    pub objectives: ObjectiveSettings,
    /// The scheduler's `swapAffinityBonus`, 0 to 99, which the check adds to each tier's offset.
    pub swap_affinity_bonus: i64,
}

impl Default for PolicySettings {
    fn default() -> Self {
        let tier = |offset| TierSettings { offset, ..TierSettings::default() };
        Self {
            tiers: [("free", 0), ("pro", 1), ("max", 2)].map(|(name, offset)| (name.into(), tier(offset))).into(),
            keys: Vec::new(),
            anonymous: None,
            allow_plain: false,
            forward_key: false,
            headers: HeaderSettings::default(),
            objectives: ObjectiveSettings::default(),
            swap_affinity_bonus: 10,
        }
    }
}

impl PolicySettings {
    /// The same with digests in place of plain keys, which is how settings may be written down.
    #[must_use]
    pub fn without_plain_keys(mut self) -> Self {
        for key in &mut self.keys {
            if let Some(plain) = key.key.take() {
                key.sha256.get_or_insert_with(|| Secret(Written::Digest(Digest::of(plain.to_text().as_bytes()))));
            }
        }
        self.allow_plain = false;
        self
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One tier.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TierSettings {
    /// Added to the anchor of the band that was asked for: 0 or more, and together with `swapAffinityBonus` below
    /// 100, so that a tier never lifts a request into the next band.
    pub offset: i64,
    /// The most urgent band that its callers may ask for. Not set: `interactive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_band: Option<Band>,
    /// Bounds for each of its keys. A key's own bounds go first.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: LimitSettings,
}

/// How many requests of one key there may be at once. Enforced by the gateway, which knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitSettings {
    /// That wait, 1 or more. Not set: no bound of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// That run, 1 or more. Not set: no bound of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
}

/// One key.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KeySettings {
    /// SHA-256 of the key in hex, as `switchyard keys hash` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Secret>,
    /// The key itself. Only with `allowPlain: true`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "refuse")]
    pub key: Option<Secret>,
    /// What to call it in logs. Not set: the tenant alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who it belongs to: the unit of fairness.
    pub tenant: String,
    /// Its tier.
    pub tier: String,
    /// The band of requests that ask for none, by name or by a number in it. Not set: `normal`, or `maxBand` where that
    /// is lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PrioritySetting>,
    /// The most urgent band it may ask for. Not set: the tier's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_band: Option<Band>,
    /// When it stops working: RFC 3339 (`2027-01-31T12:00:00Z`), or a date alone for midnight UTC at its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The models it may use. Not set: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// What it may do. Not set: `[inference]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Vec<Scope>>,
    /// Bounds of its own.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: LimitSettings,
}

/// How requests without a key are treated.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AnonymousSettings {
    /// Their tier.
    pub tier: String,
    /// The tenant they all share. Not set: `anonymous`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The band of requests that ask for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PrioritySetting>,
    /// The most urgent band they may ask for. Not set: the tier's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_band: Option<Band>,
    /// The models they may use. Not set: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// What they may do. Not set: `[inference]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Vec<Scope>>,
    /// Bounds for all of them together.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: LimitSettings,
}

/// Names of headers. Whatever they are, a caller's own are removed, and so are the names they have by default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderSettings {
    /// Carries the priority, in and out.
    pub priority: String,
    /// Carries the tenant.
    pub tenant: String,
    /// Carries the objective, where the band has one.
    pub objective: String,
    /// Carries the tier's name, for the gateway's activity log.
    pub tier: String,
    /// Carries the models of a key that may not use all, so that the gateway can hold the body against them.
    pub models: String,
    /// Names the model that is asked for, where something before the policy puts it there.
    pub model: String,
    /// Also write `x-gateway-inference-fairness-id` and `x-gateway-inference-objective`, llm-d's older names.
    #[serde(skip_serializing_if = "is_default")]
    pub older_twins: bool,
    /// Further headers that callers may not send.
    #[serde(skip_serializing_if = "is_default")]
    pub strip: Vec<String>,
}

impl Default for HeaderSettings {
    fn default() -> Self {
        Self {
            priority: "x-llamaswap-priority".into(),
            tenant: "x-llm-d-inference-fairness-id".into(),
            objective: "x-llm-d-inference-objective".into(),
            tier: "x-switchyard-tier".into(),
            models: "x-switchyard-models".into(),
            model: "x-gateway-model-name".into(),
            older_twins: false,
            strip: Vec::new(),
        }
    }
}

/// The objective of each band; none is written for a band without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ObjectiveSettings {
    /// For 100 and above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<String>,
    /// For 0 to 99.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normal: Option<String>,
    /// For below 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
}

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Ask models.
    Inference,
    /// See logs, the activity log and metrics.
    Read,
    /// Unload models, and every path that the policy does not know.
    Admin,
}

/// A key or its digest as written. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Written);

/// A digest is kept as one from the start: 100,000 of them in hex are 6 MB in every VM of a proxy.
#[derive(Clone, PartialEq, Eq)]
enum Written {
    Digest(Digest),
    Text(String),
}

impl Default for Written {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl Secret {
    /// Of a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let digest = Digest::from_hex(text).filter(|digest| digest.to_hex() == text);
        Self(digest.map_or_else(|| Written::Text(text.into()), Written::Digest))
    }

    /// The digest that the text spells in hex.
    pub(crate) fn as_digest(&self) -> Option<Digest> {
        match &self.0 {
            Written::Digest(digest) => Some(*digest),
            Written::Text(text) => Digest::from_hex(text),
        }
    }

    /// The text.
    pub(crate) fn to_text(&self) -> String {
        match &self.0 {
            Written::Digest(digest) => digest.to_hex(),
            Written::Text(text) => text.clone(),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
                Ok(Secret::new(text))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// As a digest. A key itself is never written.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_digest() {
            Some(digest) => serializer.serialize_str(&digest.to_hex()),
            None => refuse(&None, serializer),
        }
    }
}

fn refuse<S: Serializer>(_: &Option<Secret>, _: S) -> Result<S::Ok, S::Error> {
    Err(ser::Error::custom("a plain key is not written"))
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// A priority as written: a band's name or a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrioritySetting(pub String);

impl<'de> Deserialize<'de> for PrioritySetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = PrioritySetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`interactive`, `normal`, `batch` or a whole number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PrioritySetting, E> {
                Ok(PrioritySetting(text.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PrioritySetting, E> {
                Ok(PrioritySetting(number.to_string()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<PrioritySetting, E> {
                Ok(PrioritySetting(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for PrioritySetting {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PrioritySetting".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [{ "enum": ["interactive", "normal", "batch"] }, { "type": "integer" }] })
    }
}

/// Something wrong with the settings. Never quotes a value that could be a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, such as `keys[3].tier`.
    pub path: String,
    /// What.
    pub message: String,
    /// What would be right.
    pub cure: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.message, self.cure)
    }
}

impl std::error::Error for Problem {}
