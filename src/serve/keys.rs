//! API keys of clients.

use sha2::{Digest, Sha256};

/// The keys that clients may have; if there are none, all clients may ask.
pub(crate) struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    /// One key a line; lines that are empty or begin with `#` hold none.
    pub(crate) fn parse(text: &str) -> ApiKeys {
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        ApiKeys(keys.map(|key| Sha256::digest(key).into()).collect())
    }

    /// Whether there is no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these fields `Authorization` and `X-Api-Key` may be answered. One right key suffices,
    /// because programs that use the second field fill the first one with anything.
    pub(super) fn admit(&self, authorizations: &[String], api_keys: &[String]) -> bool {
        let is_bearer = |field: &String| {
            let (scheme, key) = field.split_once(' ').unwrap_or_default();
            self.is_known(key) && scheme.eq_ignore_ascii_case("bearer")
        };
        self.is_empty()
            || authorizations.iter().any(is_bearer)
            || api_keys.iter().any(|key| self.is_known(key))
    }

    /// Whether `key` is one of the keys. The time that this takes reveals nothing about the keys: the hash of `key` is
    /// compared with the hashes of all keys, each to its end.
    fn is_known(&self, key: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(key.trim()).into();
        self.0.iter().fold(false, |is_known, known| {
            let difference = known.iter().zip(&hash).fold(0, |d, (a, b)| d | (a ^ b));
            is_known | (difference == 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_with_a_key_are_admitted() {
        let keys = ApiKeys::parse("# house\nalpha\n\n  beta \n");
        assert!(!keys.is_empty());
        let admit = |authorizations: &[&str], api_keys: &[&str]| {
            let owned = |fields: &[&str]| fields.iter().map(|&field| field.to_owned()).collect();
            let (authorizations, api_keys): (Vec<String>, Vec<String>) =
                (owned(authorizations), owned(api_keys));
            keys.admit(&authorizations, &api_keys)
        };
        assert!(admit(&["Bearer alpha"], &[]) && admit(&["bearer beta"], &[]));
        assert!(admit(&[], &["alpha"]) && admit(&["Bearer none"], &[" beta"]));
        assert!(admit(&[], &["alpha", "none"]) && admit(&[], &["none", "alpha"]));
        assert!(admit(&["Bearer alpha", "Basic none"], &[]));
        assert!(!admit(&["Bearer none"], &["Bearer alpha"]) && !admit(&[], &["none", ""]));
        for other in ["", "Bearer", "Bearer ", "Bearer alph", "Basic alpha"] {
            assert!(!admit(&[other], &[]), "{other:?}");
        }
        assert!(ApiKeys::parse("#\n").admit(&[], &[]));
    }
}
