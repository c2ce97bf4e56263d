//! Where later prompts are likely to leave the text of a prompt: there the state of recurrent layers is kept.
//!
//! Conversations share their system prompt, and each turn's prompt begins with the turns before it. Templates drop the
//! thoughts of older answers, so the next prompt often leaves this one directly behind the last user's turn. Turns end
//! with a stop id.

/// Distance of the forks within long prompts, in ids.
const STEP: usize = 1024;

/// Fewest ids between two forks: fewer are quickly computed again.
const NEAR: usize = 16;

/// The forks of a prompt: numbers of ids before them, ascending.
#[derive(Debug)]
pub(super) struct Forks(Vec<usize>);

impl Forks {
    /// No forks, with capacity for those in a context of `ctx_len` ids.
    pub(super) fn with_capacity(ctx_len: usize) -> Forks {
        Forks(Vec::with_capacity(most(ctx_len)))
    }

    /// Takes the forks of `prompt`, whose turns end with `stop_ids`.
    pub(super) fn find(&mut self, prompt: &[u32], stop_ids: &[u32]) {
        find(prompt, stop_ids, &mut self.0);
    }

    /// The fork with this index.
    pub(super) fn at(&self, index: usize) -> Option<usize> {
        self.0.get(index).copied()
    }

    /// The first fork behind `pos` and up to `end`.
    pub(super) fn next(&self, pos: usize, end: usize) -> Option<usize> {
        self.0.iter().copied().find(|fork| (pos + 1..=end).contains(fork))
    }
}

/// Most forks in a context of `ctx_len` ids.
fn most(ctx_len: usize) -> usize {
    ctx_len / STEP + 4
}

fn find(prompt: &[u32], stop_ids: &[u32], forks: &mut Vec<usize>) {
    forks.clear();
    // At least one id behind a fork is computed anew, for its logits.
    let Some(last) = prompt.len().checked_sub(1) else { return };
    let ends_turn = |id: &u32| stop_ids.contains(id);
    let first_turn = prompt.iter().position(ends_turn).map(|index| index + 1);
    let last_turn = prompt.iter().rposition(ends_turn).map(|index| index + 1);
    let steps = (STEP..=last).step_by(STEP);
    forks.extend(steps.chain(first_turn).chain(last_turn));
    forks.retain(|fork| *fork <= last);
    forks.sort_unstable();
    if forks.last().is_none_or(|fork| fork + NEAR <= last) {
        forks.push(last);
    }
    let mut next = usize::MAX;
    // The later one of two near forks stays: it may be the last turn's.
    for index in (0..forks.len()).rev() {
        match forks[index] >= NEAR && forks[index] + NEAR <= next {
            true => next = forks[index],
            false => {
                forks.remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forks(len: usize, ends: &[usize]) -> Vec<usize> {
        let mut prompt = vec![7; len];
        ends.iter().for_each(|end| prompt[end - 1] = 2);
        let mut forks = Vec::new();
        find(&prompt, &[1, 2], &mut forks);
        forks
    }

    #[test]
    fn turns_and_long_texts_have_forks() {
        assert!(forks(0, &[]).is_empty() && forks(10, &[]).is_empty());
        assert_eq!(forks(100, &[]), [99]);
        assert_eq!(forks(100, &[30, 60, 95]), [30, 95]);
        // A system prompt of some ids is computed again.
        assert_eq!(forks(100, &[10, 95]), [95]);
        assert_eq!(forks(3000, &[1030, 2990]), [1030, 2048, 2990]);
        // The last id has to be computed for its logits.
        assert_eq!(forks(100, &[100]), [99]);
    }

    #[test]
    fn no_prompt_has_more_forks_than_there_is_room_for() {
        for len in (0..5000).step_by(37) {
            let ends: Vec<usize> = (1..=len).step_by(19).collect();
            let found = forks(len, &ends);
            assert!(found.len() <= most(len) && found.is_sorted());
        }
    }
}
