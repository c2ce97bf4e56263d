//! The figures of `leap eval`, for people and for programs, and whether they suffice.

use serde_json::{Map, Value, json};

use crate::cli::Failure;
use crate::format::json;

/// Sums over all compared positions.
#[derive(Default)]
pub(super) struct Report {
    /// Number of cases or windows.
    pub n_parts: usize,
    /// Word for a part: "case" or "window".
    pub part: &'static str,
    /// Positions that count.
    pub n_positions: usize,
    /// Sum of negative log-likelihoods, mean per part.
    pub nll: Mean,
    /// Sum of negative log-likelihoods of the reference or the second model, mean per part.
    pub reference_nll: Mean,
    /// KL divergence from the reference, per position.
    pub kl: Spread,
    /// Whether the most likely token agrees, 1 or 0 per position.
    pub top1: Mean,
    /// Largest drift of any position.
    pub drift: Option<f64>,
    /// Greedy tokens before the first that differs, and all greedy tokens.
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

    fn perplexity(&self) -> Option<f64> {
        self.value().map(f64::exp)
    }
}

/// Values kept for percentiles, with their mean.
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

    /// For each of `percents`, the least value that this percentage of the values does not exceed. NaN counts as the
    /// largest.
    fn percentiles<const N: usize>(&self, percents: [usize; N]) -> [Option<f64>; N] {
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(|a, b| a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(b)));
        let rank = |percent: usize| (sorted.len() * percent).div_ceil(100).max(1);
        percents.map(|percent| sorted.get(rank(percent) - 1).copied())
    }
}

impl Report {
    /// Keeps the larger drift; NaN stays.
    pub(super) fn add_drift(&mut self, drift: f64) {
        let worst = self.drift.unwrap_or(0.0);
        self.drift = Some(if worst.is_nan() || drift <= worst { worst } else { drift });
    }

    /// Perplexity divided by the reference's.
    fn perplexity_ratio(&self) -> Option<f64> {
        Some((self.nll.value()? - self.reference_nll.value()?).exp())
    }

    fn figures(&self) -> Vec<(&'static str, Value)> {
        let (greedy, greedy_of) = self.greedy.unzip();
        let [median_kl, p99_kl] = self.kl.percentiles([50, 99]);
        vec![
            ("parts", json!(self.n_parts)),
            ("nll", json!(self.nll.value())),
            ("perplexity", json!(self.nll.perplexity())),
            ("reference_nll", json!(self.reference_nll.value())),
            ("reference_perplexity", json!(self.reference_nll.perplexity())),
            ("perplexity_ratio", json!(self.perplexity_ratio())),
            ("max_drift", json!(self.drift)),
            ("mean_kl", json!(self.kl.mean.value())),
            ("median_kl", json!(median_kl)),
            ("p99_kl", json!(p99_kl)),
            ("top1_agreement", json!(self.top1.value())),
            ("positions", json!(self.n_positions)),
            ("greedy_match", json!(greedy)),
            ("greedy_tokens", json!(greedy_of)),
        ]
    }

    /// The figures as a table, or as a JSON object in one line.
    pub(super) fn render(&self, as_json: bool) -> String {
        if as_json {
            // Figures that are unknown or no number are left out.
            let known = self.figures().into_iter().filter(|(_, value)| !value.is_null());
            let object: Map<String, Value> =
                known.map(|(name, value)| (name.to_owned(), value)).collect();
            return json::compact(&Value::Object(object)) + "\n";
        }
        self.rows().iter().map(|(name, text)| format!("{name:<22}{text}\n")).collect()
    }

    /// The known figures in words, in the order in which people compare models.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let [median_kl, p99_kl] = self.kl.percentiles([50, 99]);
        let plain = |figure: f64| format!("{figure:.6}");
        let nats = |figure: f64| format!("{figure:.3e} nats");
        let of_largest = |drift: f64| format!("{drift:.3e} of the largest logit");
        let figures = [
            ("perplexity", self.nll.perplexity().map(plain)),
            ("reference perplexity", self.reference_nll.perplexity().map(plain)),
            ("ratio of the two", self.perplexity_ratio().map(plain)),
            ("mean KL", self.kl.mean.value().map(nats)),
            ("median KL", median_kl.map(nats)),
            ("99 % KL", p99_kl.map(nats)),
            ("top-1 agreement", self.top1.value().map(|top1| format!("{:.3} %", 100.0 * top1))),
            ("max drift", self.drift.map(of_largest)),
            ("greedy tokens alike", self.greedy.map(|(alike, all)| format!("{alike} of {all}"))),
        ];
        let (n, part) = (self.n_parts, self.part);
        let plural = if n == 1 { "" } else { "s" };
        let positions = format!("{} in {n} {part}{plural}", self.n_positions);
        let known = figures.into_iter().filter_map(|(name, text)| Some((name, text?)));
        known.chain([("positions", positions)]).collect()
    }

    /// Fails if a figure is worse than asked for.
    pub(super) fn verdict(
        &self,
        max_drift: Option<f64>,
        min_top1: Option<f64>,
        greedy: bool,
    ) -> Result<(), Failure> {
        let mut worse = Vec::new();
        // NaN is worse than any drift.
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
    fn people_see_what_they_compare_first() {
        let mut report = Report { n_parts: 1, part: "window", n_positions: 2, ..Report::default() };
        report.nll.add(0.5);
        assert_eq!(
            report.render(false),
            "perplexity            1.648721\n\
            positions             2 in 1 window\n"
        );
        report.reference_nll.add(0.25);
        report.n_parts = 2;
        [1e-4, 3e-4].into_iter().for_each(|kl| report.kl.add(kl));
        [1.0, 0.0].into_iter().for_each(|agrees| report.top1.add(agrees));
        assert_eq!(
            report.render(false),
            "perplexity            1.648721\n\
             reference perplexity  1.284025\n\
             ratio of the two      1.284025\n\
             mean KL               2.000e-4 nats\n\
             median KL             1.000e-4 nats\n\
             99 % KL               3.000e-4 nats\n\
             top-1 agreement       50.000 %\n\
             positions             2 in 2 windows\n"
        );
    }

    #[test]
    fn percentiles_are_values_in_their_order() {
        let mut spread = Spread::default();
        assert_eq!(spread.percentiles([50, 99]), [None, None]);
        (1..=200).rev().for_each(|n| spread.add(f64::from(n)));
        assert_eq!(spread.percentiles([0, 50, 99, 100]), [1.0, 100.0, 198.0, 200.0].map(Some));
        // NaN counts as worse than any number, whatever its sign.
        spread.add(-f64::NAN);
        assert!(spread.percentiles([100])[0].is_some_and(f64::is_nan));
        assert_eq!(spread.percentiles([0]), [Some(1.0)]);
    }
}
