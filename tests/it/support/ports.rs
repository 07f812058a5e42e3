//! Ports that nobody listens on, below the range from which the kernel takes ports of its own choice.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The first of ten consecutive free ports. Tests that run side by side get different ones.
pub(crate) fn free_ports() -> u16 {
    const RANGES: u32 = 2_000;
    // Neighbouring process ids, as of tests started together, land far from each other.
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..RANGES {
        let range = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % RANGES;
        let first = u16::try_from(12_000 + range * 10).expect("below 65536");
        if (first..first + 10).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
    panic!("no ten free ports in a row");
}
