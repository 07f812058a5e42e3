//! Names of things, as small numbers that the shell hands out.

/// One request, numbered by the shell in arrival order; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct RequestId(pub u64);

/// One caller of those that have limits; the shell sees to it that different ones have different numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct CallerId(pub u64);

/// Whom a request is for, as far as fairness is concerned; the shell sees to it that different ones have different
/// numbers. Zero stands for all whom nobody named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct TenantId(pub u64);

/// Requests that gain from running on the same replica, such as the turns of one conversation; a number well spread
/// over its range, such as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct SessionId(pub u64);

/// One configured model; the shell interns names and never reuses a number while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct ModelId(pub u32);

/// One endpoint of a model: a process that can be started, or a remote server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReplicaId {
    /// The model that the replica serves.
    pub model: ModelId,
    /// Its number among the model's replicas, from 0.
    pub index: u32,
}

/// Counts the loads of a replica. Every event about a process carries the generation it belongs to, so that
/// late news of a process that is gone is recognised and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Generation(pub u64);
