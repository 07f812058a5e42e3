//! The request's way: what clients and model servers can do to it.

mod admin;
mod bodies;
mod broken;
mod errors;
mod leaving;
mod protocol;
pub(crate) mod raw;
mod stale;
mod upstream_path;
