//! Typed reads of GGUF fields, whose keys begin with the family's name; each error names file and
//! field.

use std::path::Path;

use super::family::Family;
use super::settings::Fields;
use crate::export::error::ExportError;
use crate::export::gguf::{Gguf, GgufValue};

/// The fields of a GGUF file.
pub(super) struct GgufFields<'a> {
    path: &'a Path,
    gguf: &'a Gguf<'a>,
    /// `general.architecture`.
    family: &'a str,
    /// The family, once it is known.
    known: Option<&'static Family>,
}

impl<'a> GgufFields<'a> {
    pub(super) fn new(path: &'a Path, gguf: &'a Gguf<'a>) -> Result<GgufFields<'a>, ExportError> {
        let bad = |problem| ExportError::BadFile { path: path.to_owned(), problem };
        let family = gguf.text("general.architecture").map_err(bad)?;
        let family = family.ok_or_else(|| bad("general.architecture is missing".to_owned()))?;
        Ok(GgufFields { path, gguf, family, known: None })
    }

    /// The fields of a model of `family`. Where its layers may differ, a list's first value counts as the size.
    pub(super) fn of_family(self, family: &'static Family) -> GgufFields<'a> {
        GgufFields { known: Some(family), ..self }
    }

    pub(super) fn family(&self) -> &'a str {
        self.family
    }

    /// The whole name of field `name`.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family)
    }

    pub(super) fn unsigned(&self, name: &str) -> Result<Option<u64>, ExportError> {
        self.of_file(self.gguf.unsigned(&self.key(name)))
    }

    /// A string that belongs to files of any family.
    pub(super) fn general_text(&self, key: &str) -> Result<Option<&'a str>, ExportError> {
        self.of_file(self.gguf.text(key))
    }

    /// Whether the field lists values for each layer that are not all the same.
    pub(super) fn is_mixed(&self, name: &str) -> bool {
        self.gguf
            .get(&self.key(name))
            .is_some_and(|value| value.is_list() && value.only().is_none())
    }

    fn of_file<T>(&self, result: Result<T, String>) -> Result<T, ExportError> {
        result.map_err(|problem| self.bad(problem))
    }
}

impl Fields for GgufFields<'_> {
    /// In a list, 0 stands for a layer to which the size does not apply.
    fn size(&self, name: &str) -> Result<Option<usize>, ExportError> {
        let list = || self.gguf.get(&self.key(name)).and_then(GgufValue::list);
        if let Some(list) = list() {
            let mut sizes = list.values().filter(|value| value.unsigned() != Some(0));
            let first = sizes.next();
            let may_differ = self.known.is_some_and(|family| family.allows(name));
            if may_differ || sizes.all(|size| Some(size) == first) {
                let size = first.and_then(|first| first.unsigned());
                return Ok(size
                    .and_then(|size| usize::try_from(size).ok())
                    .filter(|size| *size <= i32::MAX as usize));
            }
        }
        self.of_file(self.gguf.size(&self.key(name)))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ExportError> {
        self.of_file(self.gguf.number(&self.key(name)))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ExportError> {
        self.of_file(self.gguf.flag(&self.key(name)))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ExportError> {
        self.of_file(self.gguf.text(&self.key(name)))
    }

    /// `None` also for a field with one value for all layers.
    fn labels(&self, name: &str) -> Result<Option<Vec<String>>, ExportError> {
        let list = self.gguf.get(&self.key(name)).and_then(GgufValue::list);
        Ok(list.map(|list| list.values().map(|value| value.to_string()).collect()))
    }

    fn unsupported(&self, what: String) -> ExportError {
        ExportError::Unsupported { path: self.path.to_owned(), what }
    }

    fn missing(&self, name: &str) -> ExportError {
        self.bad(format!("{} is missing", self.key(name)))
    }

    fn bad(&self, problem: String) -> ExportError {
        ExportError::BadFile { path: self.path.to_owned(), problem }
    }
}
