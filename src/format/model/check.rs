//! Checks whether the fields of a header fit together.

use std::ops::Range;

use super::header::{
    FileShare, HEAD_DIM_MAX, Header, PANEL_ROWS_MAX, Packed, RopeScaling, SEQ_LEN_MAX,
};
use super::weights::Weights;
use crate::format::FormatError;

/// Smallest group of values with one scale.
pub(super) const GROUP_MIN: usize = 32;
const GROUP_MAX: usize = 1 << 16;

impl Header {
    /// Checks that the fields fit together.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn check(&self) -> Result<(), FormatError> {
        if !self.has_extension && !self.dim.is_multiple_of(self.n_heads) {
            let wanted = format!("a divisor of dim {}", self.dim);
            return Err(FormatError::field("n_heads", self.n_heads as u32, wanted));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let wanted = format!("a divisor of n_heads {}", self.n_heads);
            return Err(FormatError::field("n_kv_heads", self.n_kv_heads as u32, wanted));
        }
        if self.head_dim == 0 || self.head_dim % 2 == 1 || self.head_dim > HEAD_DIM_MAX {
            let wanted = format!("an even number up to {HEAD_DIM_MAX}");
            return Err(FormatError::field("head_dim", self.head_dim as u32, wanted));
        }
        if self.max_seq_len > SEQ_LEN_MAX {
            let wanted = format!("at most {SEQ_LEN_MAX}");
            return Err(FormatError::field("max_seq_len", self.max_seq_len as u32, wanted));
        }
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return Err(FormatError::Unsupported(format!("norm_eps {}", self.norm_eps)));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta >= 1.0) {
            return Err(FormatError::Unsupported(format!("rope_theta {}", self.rope_theta)));
        }
        self.check_scaling()?;
        self.check_features()?;
        if let Some(group) = self.weights.group() {
            self.check_group(group)?;
        }
        self.check_types()?;
        self.check_packed()?;
        self.check_share()?;
        for &id in self.stop_ids.iter().chain(&self.bos) {
            if id as usize >= self.vocab_size {
                let wanted = format!("below vocab_size {}", self.vocab_size);
                return Err(FormatError::field("bos or stop id", id, wanted));
            }
        }
        Ok(())
    }

    fn check_scaling(&self) -> Result<(), FormatError> {
        let (is_sound, what) = match self.rope_scaling {
            None | Some(RopeScaling::Divisors) => return Ok(()),
            Some(RopeScaling::Linear { factor }) => {
                let is_sound = factor > 0.0 && factor.is_finite();
                (is_sound, format!("linear by {factor}, wanted a number above 0"))
            }
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                ..
            }) => {
                let finite = factor.is_finite() && low.is_finite() && high.is_finite();
                let numbers = format!("low_freq_factor {low}, high_freq_factor {high}");
                let wanted = "wanted numbers above 0, high_freq_factor above low_freq_factor";
                let is_sound = finite && factor > 0.0 && low > 0.0 && high > low;
                (is_sound, format!("llama3 by {factor}, {numbers}; {wanted}"))
            }
            Some(RopeScaling::Yarn { factor, beta_slow, beta_fast, original_ctx, .. }) => {
                let finite = factor.is_finite() && beta_fast.is_finite();
                // The blend's ends are logarithms to base theta.
                let has_base = self.rope_theta > 1.0 && original_ctx > 0;
                let is_sound =
                    finite && factor > 0.0 && beta_slow > 0.0 && beta_fast > beta_slow && has_base;
                let numbers = format!("beta_slow {beta_slow}, beta_fast {beta_fast}");
                let base = format!("context {original_ctx}, rope_theta {}", self.rope_theta);
                let wanted =
                    "wanted numbers above 0, beta_fast above beta_slow, rope_theta above 1";
                (is_sound, format!("yarn by {factor}, {numbers}, {base}; {wanted}"))
            }
        };
        match is_sound {
            true => Ok(()),
            false => Err(FormatError::Unsupported(format!("rope scaling {what}"))),
        }
    }

    fn check_packed(&self) -> Result<(), FormatError> {
        let Some(Packed { panel_rows, shares_embedding, .. }) = self.packed else { return Ok(()) };
        if self.weights == Weights::F32 {
            return Err(FormatError::Unsupported(format!("packed {} weights", self.weights)));
        }
        if shares_embedding && !self.shared_classifier {
            let what = "a packed embedding without a shared classifier";
            return Err(FormatError::Unsupported(what.to_owned()));
        }
        match (1..=PANEL_ROWS_MAX).contains(&panel_rows) {
            true => Ok(()),
            false => {
                let wanted = format!("1 to {PANEL_ROWS_MAX}");
                Err(FormatError::field("rows of a panel", panel_rows as u32, wanted))
            }
        }
    }

    fn check_share(&self) -> Result<(), FormatError> {
        let Some(FileShare { layers, slice, .. }) = &self.share else { return Ok(()) };
        let why_not_rows = self.why_whole().filter(|_| slice.is_some()).map(str::to_owned);
        if let Some(why) = self.why_not_alone(layers).or(why_not_rows) {
            return Err(FormatError::Unsupported(format!("a part of a model: {why}")));
        }
        match layers.start < layers.end && layers.end <= self.n_layers {
            true => self.check_slice(),
            false => {
                let (Range { start, end }, n_layers) = (layers, self.n_layers);
                Err(FormatError::Unsupported(format!("layers {start}..{end} of {n_layers}")))
            }
        }
    }

    fn check_group(&self, group: usize) -> Result<(), FormatError> {
        let in_range = (GROUP_MIN..=GROUP_MAX).contains(&group) && group.is_multiple_of(GROUP_MIN);
        if in_range && self.matrix_cols().all(|cols| cols.is_multiple_of(group)) {
            return Ok(());
        }
        let wanted = format!(
            "a multiple of {GROUP_MIN} that divides dim {}, ffn_dim {} and the heads' width {}",
            self.dim,
            self.ffn_dim,
            self.q_dim()
        );
        Err(FormatError::field("group_size", i32::try_from(group).unwrap_or(i32::MAX), wanted))
    }
}
