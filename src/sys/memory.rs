//! Memory of this process and of the machine, as `/proc` tells it.

use std::fs;
use std::hint::black_box;
use std::io;
use std::path::Path;

use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage, setrlimit};

use super::cgroup;
use super::tree::{Tree, kib_field};

/// Stack that the program takes at once where memory is limited.
const STACK_BYTES: usize = 192 << 10;
/// Smallest stack that the program works with.
const STACK_MIN_BYTES: u64 = 256 << 10;
/// Stack that the program asks for if it has less.
const STACK_WANTED_BYTES: u64 = 1 << 20;

/// Most memory this process has had resident so far, in bytes; mapped files count.
pub fn peak_resident_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Resets [`peak_resident_bytes`] to the present size, if the kernel can do that.
pub fn forget_peak() {
    if let Err(e) = fs::write("/proc/self/clear_refs", "5") {
        log::debug!("the peak of memory goes on to count: {e}");
    }
}

/// Memory this process has resident now, in bytes; mapped files count.
pub fn resident_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Memory of this process alone, in bytes: resident and not from a file.
pub fn anonymous_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// Memory that this process has asked for, in bytes.
pub fn virtual_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")
}

/// Memory that can be had without swapping, in bytes: what the machine has, or what is left of the
/// limit of the process's control group if that is less. Files in memory count as free.
pub fn available_bytes() -> Option<u64> {
    available_bytes_of(&Tree::new(Path::new("/")))
}

/// The available memory of the machine that `tree` shows; see [`available_bytes`].
pub fn available_bytes_of(tree: &Tree) -> Option<u64> {
    let machine = tree.kib_field("proc/meminfo", "MemAvailable:");
    machine.into_iter().chain(cgroup::available_bytes(tree)).min()
}

/// Blocks read from disks for this process so far, including those of files that it maps.
pub fn blocks_read() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    usage.map_or(0, |usage| u64::try_from(usage.block_reads()).unwrap_or(0))
}

/// Bytes of a page of memory.
pub fn page_bytes() -> u64 {
    // SAFETY: the call takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// Whether a call failed because the system has no memory, files or threads left for this process, and not
/// because of its arguments.
pub fn is_shortage(error: &io::Error) -> bool {
    let codes = [libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::EAGAIN];
    error.kind() == io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Makes sure that the main thread, which has to call this, has a stack to work with. Raises the stack's limit if that
/// is low. Takes the stack at once if memory is limited: a stack that cannot grow later ends the program by a signal.
///
/// # Errors
/// The limit in bytes, if it is too low and cannot be raised.
pub fn ensure_stack() -> Result<(), u64> {
    let unlimited = (RLIM_INFINITY, RLIM_INFINITY);
    let (mut stack, hard) = getrlimit(Resource::RLIMIT_STACK).unwrap_or(unlimited);
    if stack < STACK_WANTED_BYTES {
        for hard in [hard.max(STACK_WANTED_BYTES), hard] {
            let wanted = hard.min(STACK_WANTED_BYTES);
            if setrlimit(Resource::RLIMIT_STACK, wanted, hard).is_ok() {
                stack = wanted;
                break;
            }
        }
    }
    if stack < STACK_MIN_BYTES {
        return Err(stack);
    }
    if getrlimit(Resource::RLIMIT_AS).unwrap_or(unlimited).0 != RLIM_INFINITY {
        // A lack of heap ends the program with one line here; a lack of stack would end it by a signal.
        drop(black_box(Vec::<u8>::with_capacity(2 * STACK_BYTES)));
        touch_stack();
    }
    Ok(())
}

#[inline(never)]
fn touch_stack() {
    let _ = black_box([0_u8; STACK_BYTES]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        assert!(peak_resident_bytes().is_some_and(|bytes| bytes > 0));
    }
}
