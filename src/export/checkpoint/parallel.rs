//! Model-parallel checkpoints: each file holds a part of every tensor.
//!
//! Meta trains on several processors and publishes what each of them held. Matrices whose
//! outputs were shared out are split by rows, those whose inputs were by columns, and vectors
//! are copies. The embedding was split by columns up to Llama 2 and by rows since: its shape,
//! beside the norm's, says which.

use std::collections::BTreeMap;

use super::source::{Axis, Stored, Values, bad_tensor};
use super::{File, Table, source};
use crate::export::Error;

/// Whether the files hold parts of tensors rather than some tensors each.
pub(super) fn is_split(tables: &[Table]) -> bool {
    let [first, second, ..] = tables else { return false };
    first.iter().any(|(name, _)| second.iter().any(|(other, _)| other == name))
}

/// Puts the parts of every tensor together.
pub(super) fn join(files: &[File], tables: Vec<Table>) -> Result<Table, Error> {
    let n = tables.len();
    let mut shards: BTreeMap<String, Vec<Stored>> = BTreeMap::new();
    for (name, stored) in tables.into_iter().flatten() {
        shards.entry(name).or_default().push(stored);
    }
    let norm = shards.get("norm.weight").and_then(|parts| parts[0].shape.first().copied());
    let joined = shards.into_iter().map(|(name, parts)| {
        let path = &files[parts[0].file].path;
        let bad = |problem: String| bad_tensor(&name, path, problem);
        if parts.len() != n {
            return Err(bad(format!("is in {} of {n} files", parts.len())));
        }
        if let Some(other) = parts.iter().find(|part| part.shape != parts[0].shape) {
            let there = files[other.file].path.display();
            let (here, other) = (&parts[0].shape, &other.shape);
            return Err(bad(format!("has shape {here:?}, but {other:?} in {there}")));
        }
        let joined = match axis(&name, &parts[0].shape, norm) {
            Some(axis) => concatenate(parts, axis).map_err(bad)?,
            None => copy_of(files, &name, parts)?,
        };
        Ok((name, joined))
    });
    joined.collect()
}

/// How tensor `name` is split, each part having `shape` in a model of width `dim`; `None` if
/// every file has a copy.
fn axis(name: &str, shape: &[usize], dim: Option<usize>) -> Option<Axis> {
    let [_, cols] = *shape else { return None };
    let has_split_inputs =
        name.ends_with(".attention.wo.weight") || name.ends_with(".feed_forward.w2.weight");
    let is_narrow_embedding = name == "tok_embeddings.weight" && Some(cols) != dim;
    Some(if has_split_inputs || is_narrow_embedding { Axis::Cols } else { Axis::Rows })
}

/// Makes one tensor of its parts, which have one shape.
fn concatenate(parts: Vec<Stored>, axis: Axis) -> Result<Stored, String> {
    let n = parts.len();
    let mut parts = parts.into_iter();
    let mut whole = parts.next().ok_or("has no parts")?;
    let size = &mut whole.shape[if axis == Axis::Rows { 0 } else { 1 }];
    *size = size.checked_mul(n).ok_or("has parts that are too large")?;
    if let Ok(values) = &mut whole.values {
        values.axis = axis;
    }
    for part in parts {
        whole.values = match (whole.values, part.values) {
            (Ok(whole), Ok(part)) => append(whole, part),
            (Err(problem), _) | (_, Err(problem)) => Err(problem),
        };
    }
    Ok(whole)
}

fn append(mut whole: Values, part: Values) -> Result<Values, String> {
    let (first, other) = (whole.dtype, part.dtype);
    if first != other {
        return Err(format!("has values of type {first:?} and, in another file, {other:?}"));
    }
    whole.parts.extend(part.parts);
    Ok(whole)
}

/// The first of the copies.
///
/// # Errors
/// If they differ.
fn copy_of(files: &[File], name: &str, mut copies: Vec<Stored>) -> Result<Stored, Error> {
    let first = copies.swap_remove(0);
    for other in &copies {
        // What cannot be used may be a tensor that no model needs.
        let sources = (source(files, name, &first), source(files, name, other));
        if let (Ok(first), Ok(other)) = sources
            && !first.equals(&other)
        {
            let there = other.path.display();
            return Err(first.error(format!("differs from the copy in {there}")));
        }
    }
    Ok(first)
}
