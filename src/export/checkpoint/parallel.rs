//! Model-parallel checkpoints: each file holds a piece of every tensor.
//!
//! Meta trains on several processors and publishes what each of them held. A matrix is split by rows if its outputs
//! were divided, and by columns if its inputs were; vectors are copies. The embedding is split by columns up to Llama
//! 2, and by rows since: its shape, compared with the norm's, shows which.

use std::collections::BTreeMap;

use super::source::SourceTensor;
use super::stored::{Axis, File, StoredTensor, TensorTable, Values, bad_tensor};
use crate::export::error::ExportError;
use crate::export::names::Naming;
use crate::format::model::TensorKind;

/// Whether the files hold pieces of tensors rather than some tensors each.
pub(super) fn is_split(tables: &[TensorTable]) -> bool {
    let [first, second, ..] = tables else { return false };
    first.iter().any(|(name, _)| second.iter().any(|(other, _)| other == name))
}

/// Puts the pieces of every tensor together.
pub(super) fn join(files: &[File], tables: Vec<TensorTable>) -> Result<TensorTable, ExportError> {
    let n = tables.len();
    let mut shards: BTreeMap<String, Vec<StoredTensor>> = BTreeMap::new();
    for (name, stored) in tables.into_iter().flatten() {
        shards.entry(name).or_default().push(stored);
    }
    let norm = shards
        .get(&Naming::Meta.first(TensorKind::FinalNorm))
        .and_then(|pieces| pieces[0].shape.first().copied());
    let joined = shards.into_iter().map(|(name, pieces)| {
        let path = &files[pieces[0].file].path;
        let bad = |problem: String| bad_tensor(&name, path, problem);
        if pieces.len() != n {
            return Err(bad(format!("is in {} of {n} files", pieces.len())));
        }
        if let Some(other) = pieces.iter().find(|piece| piece.shape != pieces[0].shape) {
            let there = files[other.file].path.display();
            let (here, other) = (&pieces[0].shape, &other.shape);
            return Err(bad(format!("has shape {here:?}, but {other:?} in {there}")));
        }
        let joined = match axis(&name, &pieces[0].shape, norm) {
            Some(axis) => concatenate(pieces, axis).map_err(bad)?,
            None => copy_of(files, &name, pieces)?,
        };
        Ok((name, joined))
    });
    joined.collect()
}

/// How tensor `name` is split, each piece having `shape` in a model of width `dim`; `None` if
/// every file has a copy.
fn axis(name: &str, shape: &[usize], dim: Option<usize>) -> Option<Axis> {
    let [_, cols] = *shape else { return None };
    let is = |kind| Naming::Meta.is_name_of(name, kind);
    let has_split_inputs = is(TensorKind::Wo) || is(TensorKind::W2);
    let is_narrow_embedding = is(TensorKind::Embedding) && Some(cols) != dim;
    Some(if has_split_inputs || is_narrow_embedding { Axis::Cols } else { Axis::Rows })
}

/// Joins pieces of one shape into one tensor.
fn concatenate(pieces: Vec<StoredTensor>, axis: Axis) -> Result<StoredTensor, String> {
    let n = pieces.len();
    let mut pieces = pieces.into_iter();
    let mut whole = pieces.next().ok_or("has no pieces")?;
    let size = &mut whole.shape[if axis == Axis::Rows { 0 } else { 1 }];
    *size = size.checked_mul(n).ok_or("has pieces that are too large")?;
    if let Ok(values) = &mut whole.values {
        values.axis = axis;
    }
    for piece in pieces {
        whole.values = match (whole.values, piece.values) {
            (Ok(whole), Ok(piece)) => append(whole, piece),
            (Err(problem), _) | (_, Err(problem)) => Err(problem),
        };
    }
    Ok(whole)
}

fn append(mut whole: Values, piece: Values) -> Result<Values, String> {
    let (first, other) = (whole.dtype, piece.dtype);
    if first != other {
        return Err(format!("has values of type {first:?} and, in another file, {other:?}"));
    }
    whole.pieces.extend(piece.pieces);
    Ok(whole)
}

/// The first of the copies.
///
/// # Errors
/// If they differ.
fn copy_of(
    files: &[File],
    name: &str,
    mut copies: Vec<StoredTensor>,
) -> Result<StoredTensor, ExportError> {
    let first = copies.swap_remove(0);
    for other in &copies {
        // A tensor that cannot be used may be one that no model needs.
        let sources =
            (SourceTensor::new(files, name, &first), SourceTensor::new(files, name, other));
        if let (Ok(first), Ok(other)) = sources
            && !first.equals(&other)
        {
            let there = other.path.display();
            return Err(first.error(format!("differs from the copy in {there}")));
        }
    }
    Ok(first)
}
