//! Tests from the outside: the real binary, real processes, real sockets.

mod cli;
mod config;
mod demo_backend;
mod envoy;
mod failures;
mod flow;
mod keys;
mod lifecycle;
mod live_load;
mod llm_d;
mod plugin;
mod pools;
mod priorities;
mod processes;
mod proxy;
mod real_models;
mod scenarios;
mod simulate;
mod support;
