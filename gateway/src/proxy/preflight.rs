//! Lets pages of any origin use the API: what protects it is its keys, not the page that it is used from.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::reply::Reply;

/// The answer to `OPTIONS`, for any path.
pub(super) fn reply(headers: &HeaderMap) -> Reply {
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok());
    let allowed = asked.and_then(|asked| {
        let names: Vec<_> =
            asked.split(',').filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok()).collect();
        HeaderValue::from_str(&names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ")).ok()
    });
    let usual = HeaderValue::from_static("content-type, authorization, accept, x-requested-with");
    Reply::empty(StatusCode::NO_CONTENT)
        .with(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"))
        .with(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, OPTIONS"))
        .with(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed.unwrap_or(usual))
        .with(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_headers_are_echoed() {
        let asked = HeaderValue::from_static("X-A, <script>, authorization,, b c");
        let reply = reply(&HeaderMap::from_iter([(header::ACCESS_CONTROL_REQUEST_HEADERS, asked)]));
        let allowed = reply.headers.iter().find(|(name, _)| name == header::ACCESS_CONTROL_ALLOW_HEADERS);
        assert_eq!(allowed.map(|(_, value)| value.as_bytes()), Some(&b"x-a, authorization"[..]));
    }
}
