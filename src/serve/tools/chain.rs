//! Rules for a list of properties or elements whose number has limits.

use super::rules::{Rules, quoted};

/// Most states of a list whose elements are counted.
const STATES_MAX: usize = 4096;

/// Properties in a fixed order, some of which may be missing, and others behind them.
pub(super) struct Chain<'c> {
    /// Rules, each with whether it is required.
    items: &'c [(String, bool)],
    /// The rule of others, if there may be some.
    other: Option<&'c str>,
    comma: &'c str,
    counts: [Option<usize>; 2],
    /// Largest number of properties that has states of its own.
    cap: usize,
}

impl<'c> Chain<'c> {
    pub(super) fn new(
        items: &'c [(String, bool)],
        other: Option<&'c str>,
        comma: &'c str,
        [min, max]: [Option<usize>; 2],
    ) -> Chain<'c> {
        let n_required = items.iter().filter(|(_, is_required)| *is_required).count();
        let min = min.filter(|min| *min > n_required);
        let max = max.filter(|max| *max < items.len() || other.is_some());
        // One more than the most is too many.
        let cap = min.max(max.map(|max| max + 1)).unwrap_or(1).max(1);
        Chain { items, other, comma, counts: [min, max], cap }
    }

    /// Adds the rules, and returns the name of the first; `None` if there is no such list.
    ///
    /// # Errors
    /// If they are too many.
    pub(super) fn write(&self, rules: &mut Rules<'_>) -> Result<Option<String>, String> {
        if !self.can_end(0, 0) {
            return Ok(None);
        }
        let n_states = (self.items.len() + 1).saturating_mul(self.cap.min(self.items.len()) + 1);
        if n_states > STATES_MAX {
            return Err("properties: there are too many to count".to_owned());
        }
        let id = rules.fresh("chain")?;
        let mut open = vec![(0, 0)];
        let mut known = open.clone();
        while let Some((at, n)) = open.pop() {
            let mut ways = Vec::new();
            match self.items.get(at) {
                None => ways.push(match self.other {
                    Some(other) => counted(other, self.comma, self.counts, n),
                    None => quoted(""),
                }),
                Some((item, is_required)) => {
                    let comma = if n == 0 { "" } else { self.comma };
                    let taken = ((n + 1).min(self.cap), format!("{comma} {item} "));
                    let skipped = (!is_required).then(|| (n, String::new()));
                    for (n, before) in [taken].into_iter().chain(skipped) {
                        let next = (at + 1, n);
                        if self.can_end(at + 1, n) {
                            ways.push(format!("{before}{id}_{}_{n}", at + 1));
                            if !known.contains(&next) {
                                known.push(next);
                                open.push(next);
                            }
                        }
                    }
                }
            }
            rules.put(&format!("{id}_{at}_{n}"), &ways.join(" | "));
        }
        Ok(Some(format!("{id}_0_0")))
    }

    /// Whether a list of `n` properties may go on with those from `at` on, and end.
    fn can_end(&self, at: usize, n: usize) -> bool {
        let left = &self.items[at..];
        let n_required = left.iter().filter(|(_, is_required)| *is_required).count();
        let [min, max] = self.counts;
        let has_enough = min.is_none_or(|min| self.other.is_some() || n + left.len() >= min);
        has_enough
            && max.is_none_or(|max| n + n_required <= max)
            && min.zip(max).is_none_or(|(min, max)| min <= max)
    }
}

/// So many of `item`, each but the first one of a list behind `comma`: at least `min`, and at most `max` of them. The
/// list has `n_before` elements before them.
pub(super) fn counted(
    item: &str,
    comma: &str,
    [min, max]: [Option<usize>; 2],
    n_before: usize,
) -> String {
    let min = min.unwrap_or(0).saturating_sub(n_before);
    let max = max.map(|max| max.saturating_sub(n_before));
    let times = |min: usize, max: Option<usize>| match (min, max) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("({comma} {item})*"),
        (min, None) => format!("({comma} {item}){{{min},}}"),
        (min, Some(max)) => format!("({comma} {item}){{{min},{max}}}"),
    };
    match (max, n_before) {
        (Some(0), _) => quoted(""),
        (max, 1..) => times(min, max),
        (max, 0) => {
            let all =
                format!("{item} {}", times(min.saturating_sub(1), max.map(|max| max.max(1) - 1)));
            if min == 0 { format!("({all})?") } else { all }
        }
    }
}
