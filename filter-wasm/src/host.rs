//! The one host call that the SDK cannot make safely: it unwraps header names as UTF-8, and a trap is what a hostile
//! request must never get.

#![expect(unsafe_code, reason = "a host call takes raw pointers")]

use std::ptr;

/// `MapType::HttpRequestHeaders` and `Status::Ok` of the ABI.
const REQUEST_HEADERS: u32 = 0;
const OK: u32 = 0;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
}

/// The request's headers as the host serializes them; `None` when it refuses.
pub(crate) fn request_headers() -> Option<Vec<u8>> {
    let mut data: *mut u8 = ptr::null_mut();
    let mut size = 0;
    // SAFETY: both pointers are valid for writes during the call. On success the host hands over a buffer that it got
    // from `proxy_on_memory_allocate`, which is a boxed slice of exactly `size` bytes of our own allocator.
    unsafe {
        if proxy_get_header_map_pairs(REQUEST_HEADERS, &raw mut data, &raw mut size) != OK {
            return None;
        }
        if data.is_null() { Some(Vec::new()) } else { Some(Vec::from_raw_parts(data, size, size)) }
    }
}

/// Reads pairs out of a serialized map: a count, then for each pair the two lengths, then each pair's name and value
/// with a zero byte after either; numbers are 32 bits little-endian. Stops where a host would have written nonsense.
pub(crate) fn parse(map: &[u8]) -> Vec<(&[u8], &[u8])> {
    let number = |at: usize| -> Option<usize> {
        let bytes = map.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let count = number(0).unwrap_or(0).min(map.len() / 8);
    let mut rest = map.get(4 + 8 * count..).unwrap_or_default();
    let mut take = |length: usize| -> Option<&[u8]> {
        let taken = rest.get(..length)?;
        rest = rest.get(length.checked_add(1)?..)?;
        Some(taken)
    };
    let mut pairs = Vec::with_capacity(count);
    for index in 0..count {
        let at = 4 + 8 * index;
        let (Some(name), Some(value)) = (number(at), number(at + 4)) else { break };
        let (Some(name), Some(value)) = (take(name), take(value)) else { break };
        pairs.push((name, value));
    }
    pairs
}
