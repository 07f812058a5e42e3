//! Settings as the filter gets them: JSON.

use crate::{PolicySettings, Problem};

impl PolicySettings {
    /// Reads settings in JSON. They are only read here; [`crate::Policy::new`] checks what they say.
    ///
    /// # Errors
    /// The first place that is not JSON or not a setting. No value from the file is in it, since the value might be
    /// a key at the wrong place.
    pub fn from_json(json: &[u8]) -> Result<Self, Problem> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let settings = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            unreadable(path, error.inner())
        })?;
        reader.end().map_err(|error| unreadable(".".into(), &error))?;
        Ok(settings)
    }

    /// Writes settings so that [`PolicySettings::from_json`] reads the same. What has its default is left out.
    ///
    /// # Errors
    /// For plain keys, which [`PolicySettings::without_plain_keys`] makes digests of.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }
}

fn unreadable(path: String, error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    let (path, message) = match text.split_once(", expected ") {
        // "invalid type: string "…", expected …" quotes what it found.
        Some((found, expected)) if found.starts_with("invalid ") => (path, format!("expected {expected}")),
        // "unknown field `…`, expected …" does as well, and a key may stand where a name should.
        Some((found, expected)) => match found.split('`').nth(1) {
            Some(name) if !name.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                let parent = path.strip_suffix(name).unwrap_or(&path).trim_end_matches('.');
                (parent.to_owned(), format!("an unknown name, expected {expected}"))
            }
            _ => (path, text),
        },
        None => (path, text),
    };
    let path = if path.is_empty() || path == "." { "settings".into() } else { path };
    Problem { path, message, cure: "see config/tiers.yaml for every setting".into() }
}
