//! The policy, and its one question: may this request pass, and as whom?

use std::{borrow::Cow, fmt, hash::BuildHasher, sync::Arc};

use crate::{
    Band, Denial, LimitSettings, Reason, Scope,
    credential::Presented,
    digest::{Digest, DigestMap},
    headers::{Arrived, Names, OLDER_OBJECTIVE, OLDER_TENANT},
    route::Need,
};

/// Checked settings, ready to decide. Made by [`Policy::new`]; costs the same to ask for ten keys and for 100,000.
#[derive(Debug)]
pub struct Policy {
    pub(crate) tiers: Vec<Arc<Tier>>,
    pub(crate) keys: DigestMap<Arc<Grant>>,
    pub(crate) anonymous: Option<Arc<Grant>>,
    pub(crate) names: Names,
    /// By [`Band`], least urgent first.
    pub(crate) objectives: [Option<Box<str>>; 3],
}

/// A request as far as the policy looks at it. Bytes throughout: what arrives need not be text.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// The method, in capitals.
    pub method: &'a [u8],
    /// The path, with its query or without.
    pub path: &'a [u8],
    /// Every header in order, names in any case; pseudo-headers may be among them.
    pub headers: &'a [(&'a [u8], &'a [u8])],
}

/// The answer.
#[derive(Clone, Debug)]
pub enum Decision<'a> {
    /// Let it pass, changed like this.
    Allow(Allowed<'a>),
    /// Answer it like this.
    Deny(Denial<'a>),
}

/// How a request passes.
#[derive(Clone, Debug)]
pub struct Allowed<'a> {
    /// Names of headers to remove first, every line of each, as the request spells them.
    pub remove: Vec<&'a str>,
    /// Headers to add after that, names in lower case.
    pub set: Vec<(&'a str, Cow<'a, str>)>,
    /// Who is calling; `None` on a path that is open to everyone.
    pub identity: Option<Identity>,
}

/// Who is calling, and how urgent the request is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// What the key stands for.
    pub grant: Arc<Grant>,
    /// The anchor of the band that was asked for, plus the tier's offset.
    pub priority: i64,
}

/// A tier.
#[derive(Debug)]
pub struct Tier {
    /// Its name: letters, digits, `-` and `_`.
    pub name: Box<str>,
    /// Added to a band's anchor.
    pub offset: i64,
    /// What goes into the priority header, by [`Band`].
    pub(crate) stamps: [Box<str>; 3],
}

/// The expiry of a key without one.
pub(crate) const NEVER: i64 = i64::MAX;

/// What a key stands for, or the lack of one.
pub struct Grant {
    /// The tenant: a header's value in printable ASCII.
    pub tenant: Box<str>,
    /// The tier.
    pub tier: Arc<Tier>,
    /// What logs call the key.
    pub name: Option<Box<str>>,
    /// The band of requests that ask for none.
    pub default_band: Band,
    /// The most urgent band it may ask for.
    pub max_band: Band,
    /// Bounds on its requests, the tier's where the key has none.
    pub limits: LimitSettings,
    /// Unix seconds from which it is refused, or [`NEVER`].
    pub(crate) expires: i64,
    /// The beginning of the key's digest; 0 without a key.
    pub(crate) mark: u64,
    /// One bit a [`Scope`].
    pub(crate) scopes: u8,
    /// The models it may use, sorted; `None` for all.
    pub(crate) models: Option<Models>,
}

/// Without the mark: see [`Digest`].
impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("tenant", &self.tenant)
            .field("tier", &self.tier.name)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) sorted: Box<[Box<str>]>,
    /// The same, joined with commas for the header.
    pub(crate) stamp: Box<str>,
}

impl Grant {
    /// A number for the key, for counting its requests: other keys have others, and it is the same after the settings
    /// were read again. A hasher with a secret of its own keeps it from telling anything of the key.
    #[must_use]
    pub fn number(&self, hasher: &impl BuildHasher) -> u64 {
        hasher.hash_one(self.mark)
    }

    /// Whether its scope includes `scope`.
    #[must_use]
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes & 1 << scope as u8 != 0
    }

    /// Whether it may use a model. Ask for the name in the request's body too: a header that names another one is
    /// only the caller's word.
    #[must_use]
    pub fn allows_model(&self, model: &[u8]) -> bool {
        match &self.models {
            None => true,
            Some(models) => models.sorted.binary_search_by(|known| known.as_bytes().cmp(model)).is_ok(),
        }
    }

    /// The models it may use, sorted; `None` for all.
    #[must_use]
    pub fn models(&self) -> Option<&[Box<str>]> {
        self.models.as_ref().map(|models| &*models.sorted)
    }
}

impl Policy {
    /// Decides about a request at a time, in Unix seconds.
    #[must_use]
    pub fn decide<'a>(&'a self, request: &RequestView<'a>, now_unix: i64) -> Decision<'a> {
        self.decide_by(request, || now_unix)
    }

    /// The same with a clock that gives Unix seconds, which is asked only about a key that expires.
    #[must_use]
    pub fn decide_by<'a>(&'a self, request: &RequestView<'a>, clock: impl FnOnce() -> i64) -> Decision<'a> {
        let arrived = Arrived::read(request, &self.names);
        let need = Need::of(request.method, request.path);
        if need == Need::Nothing {
            return Decision::Allow(strip(arrived));
        }
        let deny = |reason, tier| Decision::Deny(Denial::new(reason, request.path, tier));
        let grant = match self.grant(&arrived.presented) {
            Ok(grant) => grant,
            Err(reason) => return deny(reason, None),
        };
        match judge(grant, &arrived, need, clock) {
            Ok(band) => Decision::Allow(self.stamp(grant, band, arrived)),
            Err(reason) => deny(reason, Some(&grant.tier.name)),
        }
    }

    /// Lets a request pass without asking who sends it: what it says of that is removed.
    #[must_use]
    pub fn strip<'a>(&'a self, request: &RequestView<'a>) -> Allowed<'a> {
        strip(Arrived::read(request, &self.names))
    }

    /// The tiers, in the order of their names.
    #[must_use]
    pub fn tiers(&self) -> &[Arc<Tier>] {
        &self.tiers
    }

    /// How many keys there are.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    fn grant(&self, presented: &Presented<'_>) -> Result<&Arc<Grant>, Reason> {
        match presented {
            Presented::Nothing => self.anonymous.as_ref().ok_or(Reason::MissingKey),
            Presented::Key(key) => self.keys.get(&Digest::of(key)).ok_or(Reason::UnknownKey),
            Presented::Unreadable => Err(Reason::UnknownKey),
            Presented::Ambiguous => Err(Reason::AmbiguousKey),
        }
    }

    fn stamp<'a>(&'a self, grant: &'a Arc<Grant>, band: Band, arrived: Arrived<'a>) -> Allowed<'a> {
        let Names { priority, tenant, objective, tier, models, older_twins, .. } = &self.names;
        let mut set: Vec<(&'a str, Cow<'a, str>)> = Vec::with_capacity(8);
        set.push((priority, Cow::Borrowed(&grant.tier.stamps[band as usize])));
        set.push((tenant, Cow::Borrowed(&grant.tenant)));
        set.push((tier, Cow::Borrowed(&grant.tier.name)));
        if *older_twins {
            set.push((OLDER_TENANT, Cow::Borrowed(&grant.tenant)));
        }
        if let Some(name) = &self.objectives[band as usize] {
            set.push((objective, Cow::Borrowed(name)));
            if *older_twins {
                set.push((OLDER_OBJECTIVE, Cow::Borrowed(name)));
            }
        }
        set.extend(grant.models.as_ref().map(|allowed| (&**models, Cow::Borrowed(&*allowed.stamp))));
        set.extend(arrived.connection.map(|value| ("connection", Cow::Owned(value))));
        let identity = Identity { grant: Arc::clone(grant), priority: band.anchor() + grant.tier.offset };
        Allowed { remove: arrived.remove, set, identity: Some(identity) }
    }
}

fn strip(arrived: Arrived<'_>) -> Allowed<'_> {
    let connection = arrived.connection.map(|value| ("connection", Cow::Owned(value)));
    Allowed { remove: arrived.remove, set: connection.into_iter().collect(), identity: None }
}

/// The band in which a caller's request runs, or why it does not.
fn judge(grant: &Grant, arrived: &Arrived<'_>, need: Need, clock: impl FnOnce() -> i64) -> Result<Band, Reason> {
    if grant.expires != NEVER && clock() >= grant.expires {
        return Err(Reason::ExpiredKey);
    }
    if !need.is_met_by(|scope| grant.has(scope)) {
        return Err(Reason::Scope);
    }
    if arrived.model.is_some_and(|model| !grant.allows_model(model.trim_ascii())) {
        return Err(Reason::Model);
    }
    let asked = arrived.priority.and_then(Band::asked).unwrap_or(grant.default_band);
    if asked > grant.max_band && need == Need::Inference {
        return Err(Reason::Band);
    }
    Ok(asked.min(grant.max_band))
}
