//! Unpredictable bytes.

use std::io;

/// 32 unpredictable bytes.
///
/// # Errors
/// The system's.
pub fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    loop {
        // SAFETY: `seed` is 32 writable bytes.
        let n = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
        match n {
            32 => return Ok(seed),
            n if n >= 0 => {}
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_differ() {
        assert_ne!(super::seed().unwrap(), super::seed().unwrap());
    }
}
