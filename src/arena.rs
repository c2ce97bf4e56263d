//! One allocation, divided into every buffer that generation needs.
//!
//! `model::plan` adds up the sizes. Later nothing is allocated.

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// Alignment of every buffer in bytes: two cache lines.
pub(crate) const ALIGN: usize = 128;

/// An aligned piece of the arena.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(128))]
struct AlignedLine([u8; ALIGN]);

/// The memory of the arena. It is zeroed, and resident only where it was touched.
pub(crate) struct Arena {
    lines: Vec<AlignedLine>,
}

/// The arena is too small, or the machine does not have enough memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Buffer that did not fit.
    pub what: &'static str,
    /// Bytes that the buffer needs.
    pub bytes: usize,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory for {} ({} bytes)", self.what, self.bytes)
    }
}

impl std::error::Error for Exhausted {}

impl Arena {
    /// Allocates `bytes`, rounded up to whole lines.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub(crate) fn new(bytes: usize) -> Result<Arena, Exhausted> {
        bytemuck::allocation::try_zeroed_vec(bytes.div_ceil(ALIGN))
            .map(|lines| Arena { lines })
            .map_err(|()| Exhausted { what: "the arena", bytes })
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * ALIGN
    }

    /// Starts to carve from the beginning. The same sequence of calls gives the same buffers.
    pub(crate) fn carver(&mut self) -> Carver<'_> {
        Carver { rest: Some(bytemuck::cast_slice_mut(&mut self.lines)), used: 0 }
    }
}

/// Hands out buffers from an arena in order, or only counts their bytes.
pub(crate) struct Carver<'a> {
    /// The rest of the arena; `None` when only counting.
    rest: Option<&'a mut [u8]>,
    used: usize,
}

impl<'a> Carver<'a> {
    /// Only counts bytes: every buffer is empty.
    pub(crate) fn counting() -> Carver<'a> {
        Carver { rest: None, used: 0 }
    }

    /// Bytes taken so far; `usize::MAX` means more than can be addressed.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// A buffer of the next `len` elements.
    ///
    /// # Errors
    /// If fewer bytes are left than `what` needs.
    pub(crate) fn take<T: Pod>(
        &mut self,
        what: &'static str,
        len: usize,
    ) -> Result<&'a mut [T], Exhausted> {
        let bytes = len.saturating_mul(size_of::<T>());
        let padded = bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        self.used = self.used.saturating_add(padded);
        let Some(rest) = self.rest.take() else {
            return Ok(&mut []);
        };
        if padded > rest.len() {
            return Err(Exhausted { what, bytes });
        }
        let (taken, rest) = rest.split_at_mut(padded);
        self.rest = Some(rest);
        Ok(bytemuck::cast_slice_mut(&mut taken[..bytes]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_disjoint() -> Result<(), Exhausted> {
        let mut arena = Arena::new(3 * ALIGN)?;
        let mut carver = arena.carver();
        let a = carver.take::<i8>("a", 3)?;
        let b = carver.take::<f32>("b", 2 * ALIGN / 4)?;
        assert_eq!((a.as_ptr() as usize % ALIGN, b.as_ptr() as usize % ALIGN), (0, 0));
        assert!(b.iter().all(|&x| x == 0.0));
        a.fill(1);
        b.fill(2.0);
        assert_eq!(a, [1, 1, 1]);
        assert_eq!(carver.take::<i8>("c", 1).err(), Some(Exhausted { what: "c", bytes: 1 }));
        Ok(())
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(Arena::new(usize::MAX / 2).is_err());
        let mut arena = Arena { lines: Vec::new() };
        assert!(arena.carver().take::<f32>("x", usize::MAX).is_err());
    }

    #[test]
    fn counting_adds_up_what_carving_needs() -> Result<(), Exhausted> {
        let mut carver = Carver::counting();
        carver.take::<i8>("a", 3)?;
        carver.take::<f32>("b", ALIGN)?;
        assert_eq!(carver.used(), 5 * ALIGN);
        carver.take::<f32>("c", usize::MAX)?;
        assert_eq!(carver.used(), usize::MAX);
        Ok(())
    }
}
