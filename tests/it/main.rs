//! Tests from the outside: the real binary, real processes, real sockets.

mod config;
#[allow(dead_code, unused_imports)]
mod support;
