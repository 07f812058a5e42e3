//! Switchyard decides who goes next on a GPU: a gateway in front of model servers with a dispatch queue, model
//! swapping and an account of every wait. See `ARCHITECTURE.md` for a map.

pub mod admin;
pub mod backend;
pub mod config;
pub mod demo_backend;
pub mod dispatcher;
pub mod proxy;
pub mod telemetry;
