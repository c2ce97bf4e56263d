//! Writes the fields of a GGUF file whose names begin with that of the model's family.

use crate::export::gguf::GgufHead;

/// The fields of a family's model under construction. Whole numbers fit a model file's signed fields.
pub(super) struct FieldWriter<'a> {
    /// `general.architecture`.
    family: &'static str,
    head: &'a mut GgufHead,
}

impl<'a> FieldWriter<'a> {
    pub(super) fn new(family: &'static str, head: &'a mut GgufHead) -> FieldWriter<'a> {
        FieldWriter { family, head }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family)
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.head.text(&self.key(name), value);
    }

    pub(super) fn number(&mut self, name: &str, value: usize) {
        self.head.number(&self.key(name), value as u32);
    }

    pub(super) fn float(&mut self, name: &str, value: f32) {
        self.head.float(&self.key(name), value);
    }

    pub(super) fn flag(&mut self, name: &str, value: bool) {
        self.head.flag(&self.key(name), value);
    }

    /// Adds a list of flags.
    pub(super) fn flags(&mut self, name: &str, values: &[bool]) {
        self.head.flags(&self.key(name), values);
    }

    /// Adds a list of whole numbers.
    pub(super) fn numbers(&mut self, name: &str, values: &[usize]) {
        let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
        self.head.numbers(&self.key(name), &values);
    }

    /// Adds the sizes of all layers: one number if they are alike.
    pub(super) fn sizes(&mut self, name: &str, of_layers: &[usize]) {
        match of_layers {
            [first, others @ ..] if others.iter().all(|other| other == first) => {
                self.number(name, *first);
            }
            all => self.numbers(name, all),
        }
    }
}
