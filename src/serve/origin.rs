//! Whether a script belongs to the server's own page.

use std::net::IpAddr;

/// Suffixes of names that no stranger can have (RFC 6761, 6762 and 8375, and ICANN's of 2024).
const HOME: [&str; 4] = [".localhost", ".local", ".home.arpa", ".internal"];

/// Whether a request from a script of the page at `origin`, sent to this server as `host`, comes from the server's own
/// page: then both name the same host.
///
/// A stranger can point a name of his own here, so that his page seems to be the server's (DNS rebinding). If clients
/// need keys, he gains nothing. If they need none, only names that cannot be his are accepted.
pub(super) fn is_own(origin: &str, host: &str, has_keys: bool) -> bool {
    let authority = origin.split_once("://").map(|parts| parts.1);
    let is_same = authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host));
    is_same && (has_keys || is_home(host))
}

/// Whether `host` is an address, a name without dots, or a name of a home network.
fn is_home(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.to_ascii_lowercase();
    bare.parse::<IpAddr>().is_ok()
        || !name.contains('.')
        || HOME.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_the_servers_own_where_the_host_is() {
        for host in ["127.0.0.1:8080", "[::1]:8080", "localhost", "Board:80", "pi.local:8080"] {
            let origin = format!("http://{}", host.to_lowercase());
            assert!(is_own(&origin, host, false) && is_own(&origin, host, true), "{host}");
            assert!(!is_own("http://evil.example", host, true), "{host}");
            assert!(!is_own("null", host, true), "{host}");
        }
    }

    #[test]
    fn without_keys_a_strangers_name_is_not_believed() {
        for host in ["evil.example:8080", "evil.example", "127.0.0.1.evil.example", "local.evil."] {
            let origin = format!("http://{host}");
            assert!(!is_own(&origin, host, false), "{host}");
            assert!(is_own(&origin, host, true), "{host}");
        }
    }
}
