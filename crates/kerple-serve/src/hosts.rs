//! The host names that requests may use, so that a foreign web page cannot make a browser talk to
//! the model.
//!
//! For the browser, a web page whose owner points its name to 127.0.0.1 (DNS rebinding) has the
//! same origin as the server. The `Host` header still has the page's name; `Origin` has that of a
//! page that sends a cross-origin request.

use crate::api_error::{ApiError, shortened};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use std::net::IpAddr;

/// The host names that requests may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The address the server listens on; an unspecified one means all addresses of this machine.
    pub bound: IpAddr,
    /// Other names, in lower case.
    pub names: Vec<String>,
}

impl Hosts {
    /// This machine by its own names, and by the address the server listens on.
    pub fn of(bound: IpAddr) -> Hosts {
        Hosts { bound, names: Vec::new() }
    }

    /// Refuses a request that is for another host, or comes from a page of one.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (first, second) = (hosts.next(), hosts.next());
        let Some(host) = first.filter(|_| second.is_none()) else {
            return Err(ApiError::of(StatusCode::BAD_REQUEST, "a request needs one Host header"));
        };
        let host = host.to_str().unwrap_or("?");
        let whole = uri.authority().map_or("localhost", Authority::as_str);
        for (what, name) in [("Host", host), ("target", whole)] {
            if !self.allows(name) {
                return Err(self.refused(what, name));
            }
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or("?");
        match origin.split_once("://") {
            Some((_, name)) if self.allows(name) => Ok(()),
            _ => Err(self.refused("Origin", origin)),
        }
    }

    fn refused(&self, what: &str, name: &str) -> ApiError {
        let message = format!(
            "{what} `{}` is not allowed; use localhost, the server's address, or a name given with --allow-host",
            shortened(name)
        );
        ApiError::of(StatusCode::FORBIDDEN, message)
    }

    /// Whether a host, with a port or without, is this machine.
    fn allows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        if host.contains('@') {
            return false;
        }
        if name == "localhost" || name.ends_with(".localhost") || self.names.contains(&name) {
            return true;
        }
        // an address by itself is no name that somebody else could let point here
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        address.is_ok_and(|address| address.is_loopback() || self.bound.is_unspecified() || address == self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(bound: &str, headers: &[(&'static str, &str)], uri: &str) -> u16 {
        let hosts = Hosts { names: vec!["gpu7.example".to_owned()], ..Hosts::of(bound.parse().unwrap()) };
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| {
            map.append(*name, value.parse().unwrap());
        });
        hosts.check(&uri.parse().unwrap(), &map).map_or_else(|failure| failure.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_this_machine_is_answered_for() {
        for (host, local, open) in [
            ("localhost", 200, 200),
            ("LocalHost.:8000", 200, 200),
            ("a.localhost", 200, 200),
            ("127.0.0.1:8000", 200, 200),
            ("127.8.9.1", 200, 200),
            ("[::1]:80", 200, 200),
            ("gpu7.example:8000", 200, 200),
            ("10.0.0.7:8000", 403, 200),
            ("[fe80::1]", 403, 200),
            ("evil.example", 403, 403),
            ("127.0.0.1.evil.example", 403, 403),
            ("localhost.evil.example", 403, 403),
            ("localhost@evil.example", 403, 403),
            ("evil.example@localhost", 403, 403),
            ("", 403, 403),
        ] {
            assert_eq!(status("127.0.0.1", &[("host", host)], "/"), local, "{host}");
            assert_eq!(status("0.0.0.0", &[("host", host)], "/"), open, "{host}");
        }
        assert_eq!(status("10.0.0.7", &[("host", "10.0.0.7")], "/"), 200);
    }

    #[test]
    fn every_place_that_names_a_host_counts() {
        let local = ("host", "127.0.0.1:8000");
        for (headers, uri, expected) in [
            (&[][..], "/", 400),
            (&[local, local], "/", 400),
            (&[local], "http://evil.example/", 403),
            (&[local, ("origin", "http://evil.example")], "/", 403),
            (&[local, ("origin", "null")], "/", 403),
            (&[local, ("origin", "http://127.0.0.1:8000")], "/", 200),
        ] {
            assert_eq!(status("127.0.0.1", headers, uri), expected, "{headers:?} {uri}");
        }
    }
}
