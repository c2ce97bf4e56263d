//! The figures of `leap eval`, for people and for machines, and whether they suffice.

use serde_json::{Map, Value, json};

use crate::cli::Failure;

/// Sums over all positions that were compared.
#[derive(Default)]
pub(super) struct Report {
    /// Cases or windows.
    pub n_parts: usize,
    /// Sum of negative log-likelihoods, mean per part.
    pub nll: Mean,
    /// The same of the reference or the second model.
    pub reference_nll: Mean,
    /// KL divergence from the reference, per position.
    pub kl: Spread,
    /// Whether the most likely token agrees, 1 or 0 per position.
    pub top1: Mean,
    /// Largest drift of any position.
    pub drift: Option<f64>,
    /// Greedy tokens that agree up to the first that does not, and all of them.
    pub greedy: Option<(usize, usize)>,
}

/// A mean of values that are added one by one.
#[derive(Clone, Copy, Default)]
pub(super) struct Mean {
    sum: f64,
    n: usize,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.sum += value;
        self.n += 1;
    }

    pub(super) fn value(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }
}

/// Values that are kept, for what lies between the extremes.
#[derive(Clone, Default)]
pub(super) struct Spread {
    mean: Mean,
    values: Vec<f64>,
}

impl Spread {
    pub(super) fn add(&mut self, value: f64) {
        self.mean.add(value);
        self.values.push(value);
    }

    /// For each of `percents` the least value that so many percent of the values do not exceed.
    /// One that is not a number counts as the largest.
    fn percentiles<const N: usize>(&self, percents: [usize; N]) -> [Option<f64>; N] {
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(|a, b| a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(b)));
        let rank = |percent: usize| (sorted.len() * percent).div_ceil(100).max(1);
        percents.map(|percent| sorted.get(rank(percent) - 1).copied())
    }
}

impl Report {
    /// Takes a drift into account; one that is not a number stays.
    pub(super) fn add_drift(&mut self, drift: f64) {
        let worst = self.drift.unwrap_or(0.0);
        self.drift = Some(if worst.is_nan() || drift <= worst { worst } else { drift });
    }

    fn figures(&self) -> Vec<(&'static str, Value)> {
        let perplexity = |nll: &Mean| nll.value().map(f64::exp);
        let (greedy, greedy_of) = self.greedy.unzip();
        let [median_kl, p99_kl] = self.kl.percentiles([50, 99]);
        vec![
            ("parts", json!(self.n_parts)),
            ("nll", json!(self.nll.value())),
            ("perplexity", json!(perplexity(&self.nll))),
            ("reference_nll", json!(self.reference_nll.value())),
            ("reference_perplexity", json!(perplexity(&self.reference_nll))),
            ("max_drift", json!(self.drift)),
            ("mean_kl", json!(self.kl.mean.value())),
            ("median_kl", json!(median_kl)),
            ("p99_kl", json!(p99_kl)),
            ("top1_agreement", json!(self.top1.value())),
            ("positions", json!(self.top1.n)),
            ("greedy_match", json!(greedy)),
            ("greedy_tokens", json!(greedy_of)),
        ]
    }

    /// The figures as a table, or as a JSON object in one line.
    pub(super) fn render(&self, as_json: bool) -> String {
        // What is not known, or no number, is left out.
        let known = self.figures().into_iter().filter(|(_, value)| !value.is_null());
        if as_json {
            let object: Map<String, Value> =
                known.map(|(name, value)| (name.to_owned(), value)).collect();
            return format!("{}\n", Value::Object(object));
        }
        known.map(|(name, value)| format!("{name:<22}{}\n", short(&value))).collect()
    }

    /// Fails if a figure is worse than asked for.
    pub(super) fn verdict(
        &self,
        max_drift: Option<f64>,
        min_top1: Option<f64>,
        greedy: bool,
    ) -> Result<(), Failure> {
        let mut worse = Vec::new();
        // A drift that is not a number is worse than any.
        if let Some(max) = max_drift
            && !self.drift.is_some_and(|drift| drift <= max)
        {
            worse.push(format!("drift is {}, not at most {max}", shown(self.drift)));
        }
        if let Some(min) = min_top1
            && !self.top1.value().is_some_and(|top1| top1 >= min)
        {
            worse.push(format!("top-1 is {}, not at least {min}", shown(self.top1.value())));
        }
        if greedy && self.greedy.is_none_or(|(matching, all)| matching != all) {
            worse.push("greedy tokens differ".to_owned());
        }
        match worse.is_empty() {
            true => Ok(()),
            false => Err(Failure::Runtime(worse.join("; "))),
        }
    }
}

fn shown(figure: Option<f64>) -> String {
    figure.map_or("not known".to_owned(), |figure| format!("{figure:.3e}"))
}

fn short(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if !value.is_u64() && number != 0.0 && number.abs() < 1e-3 => {
            format!("{number:.3e}")
        }
        Some(number) if !value.is_u64() => format!("{number:.6}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_absurd_figure_fails() {
        let mut report = Report::default();
        assert!(report.verdict(None, None, false).is_ok());
        assert!(report.verdict(Some(1.0), None, false).is_err());
        assert!(report.verdict(None, Some(0.0), false).is_err());
        assert!(report.verdict(None, None, true).is_err());
        report.add_drift(0.5);
        assert!(report.verdict(Some(0.5), None, false).is_ok());
        report.add_drift(f64::NAN);
        report.add_drift(0.1);
        assert!(report.verdict(Some(1.0), None, false).is_err());
    }

    #[test]
    fn figures_that_are_not_known_are_left_out() {
        let mut report = Report::default();
        report.add_drift(f64::NAN);
        report.kl.add(0.5);
        let wanted =
            "{\"parts\":0,\"mean_kl\":0.5,\"median_kl\":0.5,\"p99_kl\":0.5,\"positions\":0}\n";
        assert_eq!(report.render(true), wanted);
    }

    #[test]
    fn percentiles_are_values_in_their_order() {
        let mut spread = Spread::default();
        assert_eq!(spread.percentiles([50, 99]), [None, None]);
        (1..=200).rev().for_each(|n| spread.add(f64::from(n)));
        assert_eq!(spread.percentiles([0, 50, 99, 100]), [1.0, 100.0, 198.0, 200.0].map(Some));
        // What is not a number is worse than any, whatever its sign.
        spread.add(-f64::NAN);
        assert!(spread.percentiles([100])[0].is_some_and(f64::is_nan));
        assert_eq!(spread.percentiles([0]), [Some(1.0)]);
    }
}
