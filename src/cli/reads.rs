//! Bytes of weights that a token reads, as a table and as JSON.

use crate::format::json::JsonObject;
use crate::format::model::{Header, WeightPart, WeightRead};

/// Bytes that a token reads, by part of the model and encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenReads {
    reads: Vec<WeightRead>,
    /// Names of the encodings in use, in the order of their columns: the most bytes first.
    encodings: Vec<&'static str>,
}

impl TokenReads {
    /// Reads of a token from the tensors of the file with this header.
    pub(super) fn of(header: &Header) -> TokenReads {
        let mut found =
            TokenReads { reads: header.reads_per_token(|_| true), encodings: Vec::new() };
        let mut names: Vec<&'static str> =
            found.reads.iter().map(|read| read.encoding.name()).collect();
        names.sort_unstable();
        names.dedup();
        names.sort_by_key(|name| std::cmp::Reverse(found.bytes(None, Some(name))));
        found.encodings = names;
        found
    }

    /// Bytes of one part, or of all, in one encoding, or in all.
    fn bytes(&self, part: Option<WeightPart>, encoding: Option<&str>) -> u64 {
        let is_one = |read: &&WeightRead| {
            part.is_none_or(|part| part == read.part)
                && encoding.is_none_or(|name| name == read.encoding.name())
        };
        self.reads.iter().filter(is_one).map(|read| read.bytes).fold(0, u64::saturating_add)
    }

    /// Bytes in all.
    pub(super) fn total(&self) -> u64 {
        self.bytes(None, None)
    }

    /// The parts that the model has.
    fn parts(&self) -> impl Iterator<Item = WeightPart> {
        WeightPart::ALL.into_iter().filter(|part| self.bytes(Some(*part), None) > 0)
    }

    /// A row for each part and one for all, a column for each encoding and one for all, in bytes.
    pub(super) fn table(&self) -> String {
        let names = ["bytes read"].into_iter().chain(self.encodings.iter().copied());
        let mut rows: Vec<Vec<String>> =
            vec![names.chain(["all", "share"]).map(str::to_owned).collect()];
        for part in self.parts().map(Some).chain([None]) {
            let name = part.map_or("all", WeightPart::name).to_owned();
            let cells = self.encodings.iter().map(|name| match self.bytes(part, Some(name)) {
                0 => "-".to_owned(),
                bytes => bytes.to_string(),
            });
            let all = self.bytes(part, None);
            let share = format!("{:.1} %", 100.0 * all as f64 / self.total().max(1) as f64);
            rows.push([name].into_iter().chain(cells).chain([all.to_string(), share]).collect());
        }
        aligned(&rows)
    }

    /// Adds the bytes in all, those of each part by encoding, and those of each encoding.
    pub(super) fn add_to(&self, object: JsonObject) -> JsonObject {
        let in_each = |part: Option<WeightPart>| {
            let bytes = |name: &&'static str| (*name, self.bytes(part, Some(name)));
            let some = self.encodings.iter().map(bytes).filter(|(_, bytes)| *bytes > 0);
            some.fold(JsonObject::new(), |object, (name, bytes)| {
                object.integer(&name.to_lowercase(), bytes)
            })
        };
        let parts = self
            .parts()
            .fold(JsonObject::new(), |object, part| object.object(part.key(), in_each(Some(part))));
        object
            .integer("bytes_per_token", self.total())
            .object("reads", parts)
            .object("reads_by_encoding", in_each(None))
    }
}

/// Rows of cells, one a line: the first cell to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            match column {
                0 => text.push_str(&format!("{cell:<0$}", width(0))),
                column => text.push_str(&format!("  {cell:>0$}", width(column))),
            }
        }
        text.push('\n');
    }
    text
}
