//! Memory of this process and of the machine, as `/proc` tells it.

use std::fs;

/// Most memory this process has had resident so far, in bytes; mapped files count.
pub fn peak_resident_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Memory this process has resident now, in bytes; mapped files count.
pub fn resident_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Memory of this process alone, in bytes: resident and not from a file.
pub fn anonymous_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// Memory that can be had without swapping, in bytes.
pub fn available_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Bytes of a page of memory.
pub fn page_bytes() -> u64 {
    // SAFETY: the call takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// The number of KiB in the line of `text` that begins with `name`, in bytes.
pub(super) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
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

    #[test]
    fn this_process_uses_memory() {
        assert!(peak_resident_bytes().is_some_and(|bytes| bytes > 0));
    }
}
