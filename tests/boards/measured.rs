//! This machine's figures, which boards keep: measured once for all tests of a process.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::running::Running;
use crate::common::{leap, own_host};

/// File with a board's figures, in its folder for caches.
const FIGURES: &str = "leap/layers/figures";

/// Gives a board with one thread its folder for caches, with figures of this machine. A board that has some, or that can
/// keep nothing, stays as it is.
pub(crate) fn give_caches(command: &mut Command, caches: &Path) {
    static MEASURED: OnceLock<Vec<u8>> = OnceLock::new();

    command.env("XDG_CACHE_HOME", caches);
    let path = caches.join(FIGURES);
    if path.exists() || fs::create_dir_all(path.parent().unwrap()).is_err() {
        return;
    }
    // Boards of tests that have no room for a file say so themselves.
    let _ = fs::write(path, MEASURED.get_or_init(measure));
}

/// Figures that a board with one thread keeps when it starts.
fn measure() -> Vec<u8> {
    let folder = Folder::new();
    let key = folder.write("key", (0..32).map(|n| n * 7 + 1).collect::<Vec<u8>>());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let host = own_host().to_string();
    let mut command = leap();
    command.args(["worker", "-q", "--node", "measured", "--threads", "1", "--host", &host]);
    command.args(["--join", "9100", "--port", "9000", "--key"]).arg(key);
    command.env("XDG_CACHE_HOME", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    let said = File::create(folder.join("said")).unwrap();
    let _board = Running(command.stdin(Stdio::null()).stderr(said).spawn().unwrap());
    let start = Instant::now();
    loop {
        if let Ok(figures) = fs::read(folder.join(FIGURES)) {
            return figures;
        }
        let said = || fs::read_to_string(folder.join("said")).unwrap();
        assert!(start.elapsed() < Duration::from_secs(120), "no figures are kept: {}", said());
        thread::sleep(Duration::from_millis(20));
    }
}
