//! The proxy that the environment names, with curl's variables.

use std::env;

use ureq::{Proxy, ProxyProtocol};

use crate::store::error::StoreError;

/// A proxy.
pub(super) struct NamedProxy {
    pub(super) proxy: Proxy,
    /// The variable that names it.
    variable: &'static str,
}

impl NamedProxy {
    /// The proxy for a hub or registry at `origin`, if there is one. `NO_PROXY` lists hosts that are asked directly.
    ///
    /// # Errors
    /// If the variable names none, or one of another kind than HTTP's and HTTPS's.
    pub(super) fn of_environment(origin: &str) -> Result<Option<NamedProxy>, StoreError> {
        let own: &[&str] = match origin.starts_with("http:") {
            // A server sets HTTP_PROXY for its programs if a request has a field "Proxy".
            true => &["http_proxy"],
            false => &["https_proxy", "HTTPS_PROXY"],
        };
        let named = own.iter().chain(&["all_proxy", "ALL_PROXY"]).find_map(|&name| {
            let value = env::var_os(name)?.into_string().unwrap_or_default();
            (!value.is_empty()).then_some((name, value))
        });
        let Some((variable, value)) = named else { return Ok(None) };
        let spared = ["no_proxy", "NO_PROXY"].into_iter().filter_map(|name| env::var(name).ok());
        let spared = spared.into_iter().find(|hosts| !hosts.trim().is_empty());
        let proxy = proxy(&value, &spared.unwrap_or_default());
        let proxy = proxy.map_err(|why| StoreError::Runtime(format!("{variable} {why}")))?;
        Ok(Some(NamedProxy { proxy, variable }))
    }

    /// The proxy in words.
    pub(super) fn words(&self) -> String {
        let NamedProxy { proxy, variable } = self;
        format!("by the proxy {}:{} that {variable} names", proxy.host(), proxy.port())
    }
}

/// The proxy at the address `value`, which is not asked for the hosts `spared`.
fn proxy(value: &str, spared: &str) -> Result<Proxy, &'static str> {
    // The address may have a password, so it is not shown.
    const NO_ADDRESS: &str = "is no address of a proxy, as http://HOST:PORT";
    let named = Proxy::new(value).map_err(|_| NO_ADDRESS)?;
    let authority = named.uri().authority().map_or("", |authority| authority.as_str());
    let place = authority.rsplit('@').next().unwrap_or_default();
    let port = place.rsplit(']').next().unwrap_or_default().rsplit_once(':').map(|(_, port)| port);
    if named.host().is_empty() || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(NO_ADDRESS);
    }
    if !matches!(named.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
        return Err("names a SOCKS proxy: wanted one for HTTP, as http://HOST:PORT");
    }
    let mut built = Proxy::builder(named.protocol()).host(named.host()).port(named.port());
    if let Some(name) = named.username() {
        built = built.username(name);
    }
    if let Some(password) = named.password() {
        built = built.password(password);
    }
    let hosts = spared.split([',', ' ', '\t']).filter(|host| !host.is_empty());
    for host in hosts {
        // Hosts below it are spared, too.
        let name = host.trim_start_matches('.');
        built = built.no_proxy(name).no_proxy(&format!(".{name}"));
    }
    built.build().map_err(|_| NO_ADDRESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_proxies_are_read() {
        let read = proxy("http://me:p%40ss@proxy.lan:3128", "localhost, .lan").unwrap();
        assert_eq!((read.host(), read.port()), ("proxy.lan", 3128));
        assert_eq!((read.username(), read.password()), (Some("me"), Some("p@ss")));
        let is_spared = |url: &str| read.is_no_proxy(&url.parse().unwrap());
        assert!(is_spared("https://localhost/a") && is_spared("https://hub.lan/a"));
        assert!(is_spared("https://x.localhost/a") && is_spared("https://lan/a"));
        assert!(!is_spared("https://huggingface.co/a") && !is_spared("https://xlocalhost/a"));
        assert_eq!(proxy("proxy.lan:80", "").unwrap().host(), "proxy.lan");
        for wrong in [
            "socks5://proxy.lan:1080",
            "ftp://proxy.lan",
            "http://",
            "\u{1}",
            "proxy.lan:99999",
            "http://proxy.lan:abc",
            "http://me:secret@:80",
        ] {
            assert!(proxy(wrong, "").is_err(), "{wrong}");
        }
    }
}
