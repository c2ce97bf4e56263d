//! `leap eval`: how close a model's logits are to a reference's.

mod cases;
mod flags;
mod report;
mod text;

use super::{Failure, model_files, print};

pub(super) use flags::Eval;

impl Eval {
    pub(super) fn execute(mut self) -> Result<(), Failure> {
        let sources = [&self.cases, &self.text, &self.ids];
        if sources.iter().filter(|source| source.is_some()).count() != 1 {
            return Err(Failure::Usage("give one of --cases, --text and --ids".to_owned()));
        }
        self.model = model_files::converted(&self.model, false)?;
        if let Some(against) = &mut self.against {
            *against = model_files::converted(against, false)?;
        }
        let report = match &self.cases {
            Some(path) => cases::run(&self, path)?,
            None => text::run(&self)?,
        };
        print(&report.render(self.json))?;
        report.verdict(self.max_drift, self.min_top1, self.greedy)
    }
}
