//! Files mapped for reading.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};

/// A regular file, open for reading: it stays the same file, whatever becomes of its name.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    stamp: Stamp,
}

/// Bytes of a regular file, mapped read-only.
///
/// Reading a page that was cut off the file after it was mapped, or that its disk cannot deliver any more, raises
/// SIGBUS ([`super::signal::explain_bus_errors`]). LEAP's own files are renamed into place and never shortened.
#[derive(Debug)]
pub struct Map {
    map: Mmap,
}

/// Identity and times of a file: two stamps are equal if it was not written to meanwhile.
///
/// The device is left out, because the same disk may have another number after the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the file on its disk.
    pub inode: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// When the file was written to last, in nanoseconds.
    pub modified_ns: i64,
    /// Last change of the file or of its metadata, such as name and times, in nanoseconds. No program can set this
    /// time.
    pub changed_ns: i64,
}

impl OpenFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::InvalidInput`] for anything but a regular file.
    pub fn open(path: &Path) -> io::Result<OpenFile> {
        // Asked before opening: opening a named pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        Ok(OpenFile { stamp: Stamp::new(&file)?, file })
    }

    /// The file as it was when it was opened.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Maps the bytes `range`.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidInput`] if `range` is not inside the file, and
    /// [`io::ErrorKind::InvalidData`] if the file was written to since it was opened.
    pub fn map(&self, range: Range<usize>) -> io::Result<Map> {
        if range.start > range.end || range.end as u64 > self.stamp.bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such part of the file"));
        }
        if !Stamp::new(&self.file)?.is_same_content(&self.stamp) {
            let what = "the file was written to since it was opened; start again";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut options = MmapOptions::new();
        options.offset(range.start as u64).len(range.len());
        // SAFETY: the map is read-only, and its bytes are only read as plain numbers, for
        // which any value is valid should another process write to the file meanwhile.
        let map = unsafe { options.map(&self.file)? };
        Ok(Map { map })
    }
}

impl Stamp {
    fn new(file: &File) -> io::Result<Stamp> {
        let file = file.metadata()?;
        let ns = |s: i64, ns: i64| s.wrapping_mul(1_000_000_000).wrapping_add(ns);
        Ok(Stamp {
            inode: file.ino(),
            bytes: file.len(),
            modified_ns: ns(file.mtime(), file.mtime_nsec()),
            changed_ns: ns(file.ctime(), file.ctime_nsec()),
        })
    }

    /// Whether the file was not written to between the two stamps, though it may have another name.
    fn is_same_content(&self, other: &Stamp) -> bool {
        (self.bytes, self.modified_ns) == (other.bytes, other.modified_ns)
    }
}

impl Map {
    /// Maps all of `path`.
    ///
    /// # Errors
    /// As for [`OpenFile::open`].
    pub fn open(path: &Path) -> io::Result<Map> {
        let file = OpenFile::open(path)?;
        file.map(0..usize::try_from(file.stamp.bytes).unwrap_or(usize::MAX))
    }

    /// The bytes that are mapped.
    pub fn as_bytes(&self) -> &[u8] {
        &self.map
    }

    /// Tells the system that the map will be read mostly in order, so that it reads ahead further.
    pub fn advise_sequential(&self) {
        // Advice may be refused; the map works without it.
        let _ = self.map.advise(Advice::Sequential);
    }

    /// Starts reading `range`, which will be needed soon.
    pub fn advise_will_need(&self, range: Range<usize>) {
        if let Some((offset, len)) = self.clip(range) {
            let _ = self.map.advise_range(Advice::WillNeed, offset, len);
        }
    }

    /// Takes `range` into this process's memory at once, which is cheaper than page by page. Systems before Linux 5.14
    /// still take it page by page.
    pub fn advise_populate(&self, range: Range<usize>) {
        if let Some((offset, len)) = self.clip(range) {
            let _ = self.map.advise_range(Advice::PopulateRead, offset, len);
        }
    }

    /// Drops `range` from this process's memory. The system reads it again at the next use.
    pub fn advise_dont_need(&self, range: Range<usize>) {
        let Some((offset, len)) = self.clip(range) else { return };
        // SAFETY: the map is of a file and is never written to, so dropping its pages
        // changes none of the bytes that `as_bytes` shows.
        let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len) };
    }

    /// Offset and length of the part of `range` inside the file; `None` if there is none.
    fn clip(&self, range: Range<usize>) -> Option<(usize, usize)> {
        let end = range.end.min(self.map.len());
        let len = end.checked_sub(range.start)?;
        (len > 0).then_some((range.start, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_the_same_whatever_is_advised() {
        let path = std::env::temp_dir().join(format!("leap-map-{}", std::process::id()));
        let bytes: Vec<u8> = (0..50_000).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let map = Map::open(&path).unwrap();
        map.advise_sequential();
        map.advise_will_need(100..1 << 40);
        map.advise_populate(100..1 << 40);
        assert_eq!(map.as_bytes(), bytes);
        map.advise_dont_need(4000..20_000);
        map.advise_dont_need(60_000..70_000);
        assert_eq!(map.as_bytes(), bytes);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_stamp_tells_of_writing_and_of_another_file() {
        let path = std::env::temp_dir().join(format!("leap-stamp-{}", std::process::id()));
        let stamp = || *OpenFile::open(&path).unwrap().stamp();
        fs::write(&path, "one").unwrap();
        let first = stamp();
        assert_eq!(stamp(), first);
        let other = path.with_extension("other");
        fs::write(&other, "two").unwrap();
        let times =
            fs::FileTimes::new().set_modified(fs::metadata(&path).unwrap().modified().unwrap());
        File::options().write(true).open(&other).unwrap().set_times(times).unwrap();
        fs::rename(&other, &path).unwrap();
        let second = stamp();
        assert_eq!(second.modified_ns, first.modified_ns);
        assert_ne!(second, first);
        fs::write(&path, "three").unwrap();
        assert_ne!(stamp(), second);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_open_file_is_mapped_whatever_its_name_until_it_is_written_to() {
        let path = std::env::temp_dir().join(format!("leap-map-part-{}", std::process::id()));
        let bytes: Vec<u8> = (0..50_000).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let file = OpenFile::open(&path).unwrap();
        let other = path.with_extension("other");
        fs::rename(&path, &other).unwrap();
        fs::write(&path, "another file of that name").unwrap();
        let part = file.map(4095..20_001).unwrap();
        assert_eq!(part.as_bytes(), &bytes[4095..20_001]);
        assert_eq!(file.map(49_999..50_001).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        fs::write(&other, &bytes[..10_000]).unwrap();
        assert_eq!(file.map(0..1).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::remove_file(&path).unwrap();
        fs::remove_file(&other).unwrap();
    }

    #[test]
    fn empty_file_maps_to_no_bytes() {
        let path = std::env::temp_dir().join(format!("leap-map-empty-{}", std::process::id()));
        fs::write(&path, []).unwrap();
        assert!(Map::open(&path).unwrap().as_bytes().is_empty());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn folder_and_device_are_refused() {
        for path in ["/", "/dev/null"] {
            let error = Map::open(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
    }
}
