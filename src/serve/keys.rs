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
    pub(super) fn admit(&self, authorization: Option<&str>, api_key: Option<&str>) -> bool {
        let (scheme, bearer) =
            authorization.unwrap_or_default().split_once(' ').unwrap_or_default();
        let is_bearer = self.is_known(bearer) && scheme.eq_ignore_ascii_case("bearer");
        let is_named = self.is_known(api_key.unwrap_or_default());
        self.is_empty() || is_bearer || is_named
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
        let bearer = |field| keys.admit(field, None);
        assert!(bearer(Some("Bearer alpha")) && bearer(Some("bearer beta")));
        assert!(keys.admit(None, Some("alpha")) && keys.admit(Some("Bearer none"), Some(" beta")));
        assert!(!keys.admit(Some("Bearer none"), Some("Bearer alpha")));
        assert!(!keys.admit(None, Some("")));
        for other in
            [None, Some("Bearer"), Some("Bearer "), Some("Bearer alph"), Some("Basic alpha")]
        {
            assert!(!bearer(other), "{other:?}");
        }
        assert!(ApiKeys::parse("#\n").admit(None, None));
    }
}
