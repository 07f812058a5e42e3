//! The gateway's own log, kept for those who ask for it over HTTP.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures_util::Stream;

use crate::backend::Ring;

/// The last lines of the gateway's own log. A subscriber of `tracing` writes into it, an event a call. Cheap to clone.
#[derive(Clone)]
pub struct OwnLog {
    ring: Arc<Ring>,
}

impl OwnLog {
    /// `capacity` in bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { ring: Arc::new(Ring::new(capacity)) }
    }

    /// What is kept.
    #[must_use]
    pub fn tail(&self) -> Bytes {
        self.ring.since(0)
    }

    /// What is kept, then what is written from now on, line by line. A reader that is too slow is told how many lines it
    /// missed.
    pub fn subscribe(&self) -> impl Stream<Item = Bytes> + Send + use<> {
        self.ring.subscribe()
    }
}

impl io::Write for OwnLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Colours are for the terminal that they were meant for.
        self.ring.push(&[&anstream::adapter::strip_bytes(line).into_vec()]);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_kept_without_their_colours() {
        let mut log = OwnLog::new(100);
        log.write_all(b"\x1b[32m INFO\x1b[0m ready\n").expect("it is kept");
        assert_eq!(log.tail(), " INFO ready\n");
    }
}
