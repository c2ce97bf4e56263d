//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access, linkat};

/// Number of names to try for a temporary file before giving up.
const ATTEMPTS: u32 = 100;

/// A file that has no name until [`commit`](Self::commit), or a temporary name where the file system has no files
/// without names.
///
/// Dropped before `commit`, the file is gone and nothing has changed. A process that is killed leaves nothing of an
/// unnamed file.
#[derive(Debug)]
pub struct AtomicFile {
    /// `None` once committed.
    file: Option<BufWriter<File>>,
    /// Under `/proc/self/fd` if the file has no name.
    temporary: PathBuf,
    has_name: bool,
    path: PathBuf,
}

/// The bytes of the file at `path`. Devices and pipes are refused: they may have no end.
///
/// # Errors
///
/// If the file cannot be read, or is not a regular file.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let kind = fs::metadata(path)?.file_type();
    // Reading a folder has an error of its own.
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    fs::read(path)
}

/// Writes a small file whole or not at all.
///
/// # Errors
///
/// Those of [`AtomicFile`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

impl AtomicFile {
    /// Starts a file that will become `path`, in the same folder.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written, or `path` exists and is not a regular file.
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        let path = match fs::canonicalize(path) {
            Ok(existing) if !existing.is_file() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            // Renaming onto a symbolic link would replace the link.
            Ok(existing) => existing,
            Err(_) => path.to_path_buf(),
        };
        if path.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file name"));
        }
        let (file, temporary, has_name) = match unnamed(folder(&path)) {
            Some((file, temporary)) => (file, temporary, false),
            None => {
                let create =
                    |name: &Path| OpenOptions::new().write(true).create_new(true).open(name);
                let (file, temporary) = with_temporary_name(&path, create)?;
                (file, temporary, true)
            }
        };
        let file = Some(BufWriter::with_capacity(1 << 16, file));
        Ok(AtomicFile { file, temporary, has_name, path })
    }

    /// Writes everything to the disk, then gives the file its name.
    ///
    /// # Errors
    ///
    /// Errors of writing, syncing or renaming, such as a full disk; the file is removed.
    pub fn commit(mut self) -> io::Result<()> {
        let file = self.writer()?;
        file.flush()?;
        file.get_ref().sync_all()?;
        if !self.has_name && self.link(&self.path).is_err() {
            // A file has the name already, and a link does not replace it.
            let link = |name: &Path| self.link(name);
            (_, self.temporary) = with_temporary_name(&self.path, link)?;
            self.has_name = true;
        }
        if self.has_name {
            fs::rename(&self.temporary, &self.path)?;
        }
        self.file = None;
        // The name itself is on the disk only once the folder is; some file systems refuse.
        if let Ok(folder) = File::open(folder(&self.path)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Gives the unnamed file this name.
    fn link(&self, name: &Path) -> io::Result<()> {
        linkat(AT_FDCWD, &self.temporary, AT_FDCWD, name, AtFlags::AT_SYMLINK_FOLLOW)?;
        Ok(())
    }

    /// Path of the bytes until [`commit`](Self::commit).
    pub fn temporary_path(&self) -> &Path {
        &self.temporary
    }

    /// Reserves `bytes` of disk space, so that a full disk shows before the work is done.
    ///
    /// # Errors
    ///
    /// A full disk or a file size limit. A file system that cannot reserve is no error.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        let len = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        loop {
            match fallocate(self.inner()?, FallocateFlags::empty(), 0, len) {
                Err(Errno::EINTR) => {}
                Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Cuts or extends the file to `len` bytes.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner()?.set_len(len)
    }

    /// Writes all of `bytes` at `offset` and makes the system start writing them to the disk, so that little is left
    /// for [`sync`](Self::sync). Bytes that [`Write`] has buffered come later.
    ///
    /// # Errors
    ///
    /// Errors of writing, such as a full disk.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = self.inner()?;
        file.write_all_at(bytes, offset)?;
        if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(bytes.len())) {
            // SAFETY: the call takes no pointers, and the descriptor is open while `file` is.
            // Only a hint: a file system that refuses it writes later.
            let _ = unsafe {
                libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE)
            };
        }
        Ok(())
    }

    /// Writes everything to the disk.
    ///
    /// # Errors
    ///
    /// Errors of writing or syncing.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.inner()?.sync_all()
    }

    /// Writes everything to the disk and drops the copy in memory, so that reading the file again shows what the disk
    /// has.
    ///
    /// # Errors
    ///
    /// Errors of writing or syncing.
    pub fn sync_and_forget(&mut self) -> io::Result<()> {
        self.sync()?;
        // Only a hint: a file system that keeps its pages is no error.
        let _ = posix_fadvise(self.inner()?, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    fn inner(&self) -> io::Result<&File> {
        self.file.as_ref().map(BufWriter::get_ref).ok_or_else(committed)
    }

    fn writer(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(committed)
    }
}

/// Drops a file's pages from the system's memory, so that reading the file again reads the disk.
///
/// # Errors
///
/// If the file cannot be opened. A system that keeps its pages is no error.
pub fn forget(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    // Unwritten pages cannot be dropped.
    file.sync_all()?;
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

/// Waits until no other process holds the lock of `path`'s folder, and takes the lock. Dropping the result releases it.
///
/// # Errors
///
/// The system's.
pub fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = File::open(folder(path))?;
    folder.lock()?;
    Ok(folder)
}

/// Whether this user may create files in `folder`, and its file system allows it.
pub fn is_writable(folder: &Path) -> bool {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Bytes that this user may still write to the file system of `path`.
///
/// # Errors
///
/// The system's.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let system = statvfs(path)?;
    let (blocks, bytes) = (system.blocks_available(), system.fragment_size());
    #[allow(clippy::unnecessary_cast, reason = "both types are u32 on some systems")]
    Ok((blocks as u64).saturating_mul(bytes as u64))
}

/// An unnamed file in `folder`, and a path to the file. `None` if the file system has no unnamed files, or there is no
/// way to name the file later.
fn unnamed(folder: &Path) -> Option<(File, PathBuf)> {
    let mut open = OpenOptions::new();
    let file = open.write(true).custom_flags(libc::O_TMPFILE).open(folder).ok()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.exists().then_some((file, path))
}

/// Calls `create` with hidden names beside `path` until one is free.
fn with_temporary_name<T>(
    path: &Path,
    create: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    for attempt in 0..ATTEMPTS {
        let mut hidden = OsString::from(".");
        hidden.push(path.file_name().unwrap_or_default());
        hidden.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let temporary = path.with_file_name(hidden);
        match create(&temporary) {
            Ok(made) => return Ok((made, temporary)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many temporary files"))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn committed() -> io::Error {
    io::Error::other("file is already committed")
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.writer()?.seek(to)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Buffered bytes are of no use any more.
            let _ = file.into_parts();
            if self.has_name {
                let _ = fs::remove_file(&self.temporary);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("leap-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn committed_file_replaces_the_old_one() {
        let folder = folder("commit");
        let path = folder.join("out");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"..w").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"ne").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(&folder), ["out"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn places_can_be_written_in_any_order() {
        let folder = folder("at");
        let path = folder.join("out");
        let mut file = AtomicFile::create(&path).unwrap();
        file.reserve(6).unwrap();
        file.write_all_at(b"def", 3).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        file.sync_and_forget().unwrap();
        assert_eq!(fs::read(file.temporary_path()).unwrap(), b"abcdef");
        assert!(file.reserve(u64::MAX).is_err());
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abcdef");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn file_has_no_name_before_it_is_whole() {
        let folder = folder("unnamed");
        if unnamed(&folder).is_some() {
            let mut file = AtomicFile::create(&folder.join("out")).unwrap();
            file.write_all(&[7; 1 << 17]).unwrap();
            file.sync().unwrap();
            // A process that is killed here leaves these names.
            assert!(names(&folder).is_empty());
            file.commit().unwrap();
            assert_eq!(names(&folder), ["out"]);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn file_system_without_unnamed_files_has_a_temporary_name() {
        let folder = folder("named");
        let path = folder.join("out");
        let create = |name: &Path| File::create_new(name);
        let start = || {
            let (file, temporary) = with_temporary_name(&path, create).unwrap();
            let file = Some(BufWriter::new(file));
            AtomicFile { file, temporary, has_name: true, path: path.clone() }
        };
        start().write_all(b"dropped").unwrap();
        assert!(names(&folder).is_empty());
        let mut file = start();
        file.write_all(b"kept").unwrap();
        file.commit().unwrap();
        assert_eq!(
            (names(&folder), fs::read(&path).unwrap()),
            (vec!["out".into()], b"kept".into())
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn free_space_is_told() {
        assert!(free_bytes(&std::env::temp_dir()).is_ok());
        assert!(free_bytes(Path::new("/no/such/folder")).is_err());
    }

    #[test]
    fn two_writers_do_not_share_a_temporary_file() {
        let folder = folder("two");
        let path = folder.join("out");
        let mut a = AtomicFile::create(&path).unwrap();
        let mut b = AtomicFile::create(&path).unwrap();
        a.write_all(b"a").unwrap();
        b.write_all(b"b").unwrap();
        a.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a");
        b.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"b");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn dropped_file_leaves_nothing() {
        let folder = folder("drop");
        let mut file = AtomicFile::create(&folder.join("out")).unwrap();
        file.write_all(&[7; 1 << 17]).unwrap();
        drop(file);
        assert!(names(&folder).is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn link_is_written_through_and_folder_refused() {
        let folder = folder("link");
        std::os::unix::fs::symlink("target", folder.join("link")).unwrap();
        fs::write(folder.join("target"), "old").unwrap();
        let mut file = AtomicFile::create(&folder.join("link")).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(folder.join("target")).unwrap(), b"new");
        assert!(AtomicFile::create(&folder).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
