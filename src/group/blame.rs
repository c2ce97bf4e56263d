//! The cause of a group's failure, and a node that does not fit.

/// The causes that a group's first node reports while the group is not whole.
#[derive(Default)]
pub(crate) struct Blame {
    /// Cause of the break.
    trouble: Option<String>,
    /// A node that did not fit since then, and the reason.
    refusal: Option<String>,
}

impl Blame {
    /// Notes that `what` broke the group, unless an earlier cause is known.
    pub(crate) fn trouble(&mut self, what: impl FnOnce() -> String) {
        self.trouble.get_or_insert_with(what);
    }

    /// Whether the group is broken.
    pub(crate) fn is_troubled(&self) -> bool {
        self.trouble.is_some()
    }

    /// Cause of the break, if the group is broken.
    pub(crate) fn what(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Notes a node that does not fit, which may be why others are missing. Returns `true` if this is new.
    pub(crate) fn refuse(&mut self, what: String) -> bool {
        self.refusal.replace(what) != self.refusal
    }

    /// The node that does not fit, and the reason.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Forgets all causes: the group is whole.
    pub(crate) fn clear(&mut self) {
        *self = Blame::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_broke_first_is_blamed_and_a_refusal_is_news_once() {
        let mut blame = Blame::default();
        blame.trouble(|| "pi is silent".to_owned());
        blame.trouble(|| "so is fig".to_owned());
        assert_eq!(blame.what(), Some("pi is silent"));
        assert!(blame.refuse("fig has another model".to_owned()));
        assert!(!blame.refuse("fig has another model".to_owned()));
        assert!(blame.refuse("fig has another key".to_owned()));
        blame.clear();
        assert!(!blame.is_troubled() && blame.refusal().is_none());
    }
}
