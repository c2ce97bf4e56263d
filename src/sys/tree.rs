//! Small text files of the kernel: `/proc` and `/sys`, or a copy of them elsewhere.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest text that is read; what the kernel writes in one file is shorter.
const TEXT_MAX: u64 = 64 << 10;
/// Most names taken from a folder.
const NAMES_MAX: usize = 4096;

/// A file system tree, usually the machine's own.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree below `root`; `/` is this machine.
    pub fn new(root: &Path) -> Tree {
        Tree { root: root.to_owned() }
    }

    /// Whether this is the running machine and not a copy of its files: system calls answer for the running machine
    /// only.
    pub fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The full path of `path`, which has no leading slash.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The text of `path` without surrounding white space; `None` if it is not a readable file.
    /// Bytes that are no text, or that would steer a terminal, are replaced.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = self.raw_text(path)?;
        let plain = |c: char| match c {
            '\n' => '\n',
            c if c.is_whitespace() => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        };
        Some(text.trim().chars().map(plain).collect())
    }

    /// The number that `path` holds.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The number of KiB in the line of `path` that begins with `field`, in bytes.
    pub fn kib_field(&self, path: &str, field: &str) -> Option<u64> {
        kib_field(&self.raw_text(path)?, field)
    }

    /// Whether there is anything at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in the folder `path`, sorted; none if it is no folder. Names that are no plain text are left
    /// out: the kernel gives none.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let names =
            entries.take(NAMES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| !name.chars().any(char::is_control)).collect();
        names.sort_unstable();
        names
    }

    /// Target of the symbolic link `path`.
    pub fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok()?.into_os_string().into_string().ok()
    }

    fn raw_text(&self, path: &str) -> Option<String> {
        let path = self.path(path);
        // Asked before opening: opening a named pipe would wait for its writer.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(TEXT_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The number in the line of `text` that begins with `name`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The number of KiB in the line of `text` that begins with `name`, in bytes.
pub(super) fn kib_field(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_kib() {
        assert_eq!(kib_field("A: 1 kB\nMemAvailable:   2048 kB\n", "MemAvailable:"), Some(2 << 20));
        assert_eq!(kib_field("", "VmHWM:"), None);
        assert_eq!(kib_field("A: 18446744073709551615 kB", "A:"), None);
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("leap-tree-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn texts_are_short_and_plain() {
        let folder = folder("texts");
        let tree = Tree::new(&folder);
        fs::write(folder.join("n"), " -12 \n").unwrap();
        fs::write(folder.join("odd"), b"a\x1b[2J\xff\nb\tc\n").unwrap();
        fs::write(folder.join("long"), vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(tree.number("n"), Some(-12));
        assert_eq!(tree.number("odd"), None);
        assert_eq!(tree.text("odd").unwrap(), "a\u{fffd}[2J\u{fffd}\nb c");
        assert_eq!(tree.text("long").unwrap().len() as u64, TEXT_MAX);
        assert_eq!(tree.text("none"), None);
        assert_eq!(tree.text("."), None);
        assert_eq!(tree.names("."), ["long", "n", "odd"]);
        assert!(tree.names("n").is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_named_pipe_is_not_waited_for() {
        let folder = folder("pipe");
        let made = nix::unistd::mkfifo(&folder.join("pipe"), nix::sys::stat::Mode::S_IRUSR);
        made.unwrap();
        assert_eq!(Tree::new(&folder).text("pipe"), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
