//! Tests from the outside: the real binary, real processes, real sockets.

#[allow(dead_code, unused_imports)]
mod support;
