//! Who may ask: clients that have one of the keys.

use sha2::{Digest, Sha256};

/// The keys that clients may have; if there are none, everybody may ask.
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

    /// Whether a request with this field `Authorization` may be answered. How long that takes does not
    /// tell how much of a key is right: hashes are compared, all of them, each to its end.
    pub(super) fn admit(&self, authorization: Option<&str>) -> bool {
        let (scheme, key) = authorization.unwrap_or_default().split_once(' ').unwrap_or_default();
        let hash: [u8; 32] = Sha256::digest(key.trim()).into();
        let is_known = self.0.iter().fold(false, |is_known, known| {
            let difference = known.iter().zip(&hash).fold(0, |d, (a, b)| d | (a ^ b));
            is_known | (difference == 0)
        });
        self.is_empty() || (is_known && scheme.eq_ignore_ascii_case("bearer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_a_key_is_admitted() {
        let keys = ApiKeys::parse("# house\nalpha\n\n  beta \n");
        assert!(!keys.is_empty());
        assert!(keys.admit(Some("Bearer alpha")) && keys.admit(Some("bearer beta")));
        for other in
            [None, Some("Bearer"), Some("Bearer "), Some("Bearer alph"), Some("Basic alpha")]
        {
            assert!(!keys.admit(other), "{other:?}");
        }
        assert!(ApiKeys::parse("#\n").admit(None));
    }
}
