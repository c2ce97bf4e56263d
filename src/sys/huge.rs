//! Memory in huge pages: one look-up of an address serves 2 MiB instead of 4 KiB.

use std::fs;
use std::io;

use memmap2::{Advice, MmapMut};

/// Wanted size of memory pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages, if there are any.
    Huge,
    /// The system's own size, as for a mapped file.
    Small,
}

/// Anonymous memory that the system was asked to back with huge pages.
pub struct HugeMemory {
    map: MmapMut,
}

impl HugeMemory {
    /// `bytes` of zeros; resident only where they have been touched.
    ///
    /// # Errors
    /// If the system does not have that much memory. A lack of huge pages is no error.
    pub fn new(bytes: usize) -> io::Result<HugeMemory> {
        HugeMemory::in_pages(bytes, Pages::Huge)
    }

    /// Takes `bytes` of zeros in `pages`; see [`HugeMemory::new`].
    ///
    /// # Errors
    /// See [`HugeMemory::new`].
    pub fn in_pages(bytes: usize, pages: Pages) -> io::Result<HugeMemory> {
        let map = MmapMut::map_anon(bytes)?;
        let advice = if pages == Pages::Huge { Advice::HugePage } else { Advice::NoHugePage };
        if let Err(e) = map.advise(advice) {
            log::debug!("no {pages:?} pages: {e}");
        }
        Ok(HugeMemory { map })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.map
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// Whether this system gives huge pages to programs that ask for them.
pub fn is_available() -> bool {
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|modes| modes.contains("[always]") || modes.contains("[madvise]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_writable() {
        let mut memory = HugeMemory::new(5 << 20).unwrap();
        assert!(memory.as_slice().iter().all(|&b| b == 0));
        memory.as_mut_slice()[(5 << 20) - 1] = 7;
        assert_eq!(memory.as_slice().last(), Some(&7));
    }
}
