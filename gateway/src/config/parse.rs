//! Reads texts of special kinds. Every error says what is wrong with the text.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{macros::RESERVED, settings::Upstream};

/// `ADDRESS:PORT`, `:PORT` for every address, `localhost:PORT`.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let full = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.replacen("localhost:", "127.0.0.1:", 1),
    };
    full.parse().map_err(|_| format!("\"{text}\" is not an address with a port"))
}

/// The base of a server's URL.
pub(super) fn url(text: &str) -> Result<Upstream, String> {
    let fail = |why: &str| Err(format!("\"{text}\" {why}"));
    let Ok(uri) = text.trim().parse::<http::Uri>() else { return fail("is not a URL") };
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return fail("does not begin with http:// or https://"),
    };
    let Some(authority) = uri.authority() else { return fail("has no host") };
    if authority.as_str().contains('@') {
        return Err("a user name or password in a URL is not supported".to_owned());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return fail("has no host");
    }
    let port = match (authority.port_u16(), authority.as_str().rsplit_once(':')) {
        (Some(port), _) => port,
        (None, Some((_, port))) if !port.ends_with(']') => return fail("has a port that is no port number"),
        (None, _) => {
            if tls {
                443
            } else {
                80
            }
        }
    };
    if uri.query().is_some() {
        return fail("has a query");
    }
    Ok(Upstream { tls, host: host.to_owned(), port, prefix: uri.path().trim_end_matches('/').to_owned() })
}

/// A path, or `none`.
pub(super) fn check_endpoint(text: &str) -> Result<Option<String>, String> {
    match text.trim() {
        "none" => Ok(None),
        path => {
            let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
            let is_path = !path.contains("://") && path.parse::<http::uri::PathAndQuery>().is_ok();
            if is_path { Ok(Some(path)) } else { Err(format!("\"{text}\" is not a path")) }
        }
    }
}

/// `NAME=value`.
pub(super) fn env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("\"{text}\" is not NAME=value")),
    }
}

/// A name that requests can ask for.
pub(super) fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("a name is empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// A secret; the error does not repeat it.
pub(super) fn api_key(text: &str) -> Result<String, String> {
    match text {
        "" => Err("the key is empty".to_owned()),
        text if text.contains(char::is_whitespace) => Err("the key has a space in it".to_owned()),
        text if !text.chars().all(|c| c.is_ascii_graphic()) => {
            Err("the key has a character in it that no header can carry".to_owned())
        }
        text => Ok(text.to_owned()),
    }
}

/// The name of a header.
pub(super) fn header(text: &str) -> Result<http::HeaderName, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a header's name"))
}

/// A network, or an address alone.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map(|network| network.trunc()).map_err(|_| format!("\"{text}\" is not a network"))
}

/// A regular expression.
pub(super) fn regex(text: &str) -> Result<String, String> {
    match regex::Regex::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            let last = error.to_string();
            let reason = last.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(format!("\"{text}\" is not a regular expression: {reason}"))
        }
    }
}

/// What a macro may be called.
pub(super) fn macro_name(name: &str) -> Result<(), (String, String)> {
    if RESERVED.contains(&name) {
        return Err((format!("{name} is the gateway's own macro"), "choose another name".to_owned()));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > 63 || !name.chars().all(legal) {
        let message = "this name cannot be used as a macro".to_owned();
        return Err((message, "use up to 63 letters, digits, - and _".to_owned()));
    }
    Ok(())
}
