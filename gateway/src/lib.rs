//! Switchyard decides who goes next on a GPU: a gateway in front of model servers with a dispatch queue, model
//! swapping and an account of every wait. See `ARCHITECTURE.md` for a map.
//!
//! Two parts of it are of use in a Pingora proxy of one's own: [`dispatcher::Dispatcher::submit`] waits for a request's
//! turn, and [`proxy::identify`] finds out who is calling; `examples/pingora-plugin` has both.

pub mod admin;
pub mod backend;
pub mod config;
pub mod demo_backend;
pub mod dispatcher;
pub mod proxy;
pub mod telemetry;

pub use switchyard_policy as policy;
pub use switchyard_scheduler as scheduler;
