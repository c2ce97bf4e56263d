//! Files that appear under their name only when they are complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};

/// A file being written under a temporary name beside its final one.
///
/// [`AtomicFile::commit`] gives it its name; dropped before that, it is removed.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_committed: bool,
}

impl AtomicFile {
    /// Begins a file that will be called `path`. If `path` is a link to a file, the file it
    /// leads to is the one replaced.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::InvalidInput`] if `path` exists and is no regular
    /// file or has no file name.
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        let path = target(path)?;
        for attempt in 0..100 {
            let temporary = temporary_name(&path, attempt)?;
            match OpenOptions::new().read(true).write(true).create_new(true).open(&temporary) {
                Ok(file) => return Ok(AtomicFile { file, temporary, path, is_committed: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "100 temporary files are in the way"))
    }

    /// Where the bytes are until [`AtomicFile::commit`].
    pub fn temporary_path(&self) -> &Path {
        &self.temporary
    }

    /// Reserves `bytes` of disk space, so that a full disk shows before the work is done.
    ///
    /// # Errors
    /// The system's. A file system that cannot reserve is not an error.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        let len = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        loop {
            match fallocate(self.file.as_fd(), FallocateFlags::empty(), 0, len) {
                Err(Errno::EINTR) => {}
                Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Writes all of `bytes` at `offset`, whatever the position for [`Write`].
    ///
    /// # Errors
    /// The system's.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Writes everything to the disk and forgets the copy in memory, so that reading the
    /// file again shows what the disk has.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()?;
        // Only advice: a file system that keeps its pages is no error.
        let _ = posix_fadvise(self.file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    /// Writes everything to the disk and gives the file its name, replacing what had it.
    ///
    /// # Errors
    /// The system's; the temporary file is gone then and `path` is as it was.
    pub fn commit(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.is_committed = true;
        // The new name is durable when its folder is; some file systems cannot sync one.
        if let Ok(folder) = File::open(folder(&self.path)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.is_committed {
            // Nothing can be done about a file that cannot be removed.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path),
        Ok(found) => {
            let what = if found.is_dir() { "is a folder" } else { "is not a regular file" };
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(e) => Err(e),
    }
}

fn temporary_name(path: &Path, attempt: u32) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "names no file"));
    };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.{attempt}.tmp", std::process::id()));
    Ok(path.with_file_name(temporary))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("leap-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Folder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn file_appears_whole_on_commit_and_replaces_the_old_one() {
        let folder = Folder::new("commit");
        let path = folder.0.join("m");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.reserve(4).unwrap();
        file.write_all(b"n??").unwrap();
        file.write_all_at(b"ew!", 1).unwrap();
        file.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new!");
        assert_eq!(folder.names(), ["m"]);
    }

    #[test]
    fn dropped_file_leaves_nothing() {
        let folder = Folder::new("drop");
        let mut file = AtomicFile::create(&folder.0.join("m")).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(folder.names().len(), 1);
        drop(file);
        assert_eq!(folder.names(), [""; 0]);
    }

    #[test]
    fn two_writers_do_not_share_a_temporary_file() {
        let folder = Folder::new("two");
        let path = folder.0.join("m");
        let (mut a, mut b) =
            (AtomicFile::create(&path).unwrap(), AtomicFile::create(&path).unwrap());
        a.write_all(b"a").unwrap();
        b.write_all(b"b").unwrap();
        a.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a");
        b.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"b");
    }

    #[test]
    fn link_is_kept_and_its_file_replaced() {
        let folder = Folder::new("link");
        let (link, path) = (folder.0.join("link"), folder.0.join("m"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink("m", &link).unwrap();
        let mut file = AtomicFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn folder_device_and_empty_name_are_refused() {
        for path in ["/", "/dev/null", "."] {
            let error = AtomicFile::create(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        assert!(AtomicFile::create(Path::new("")).is_err());
        assert!(AtomicFile::create(Path::new("/no/such/folder/m")).is_err());
    }
}
