//! Shared libraries that are opened while the program runs.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::io;
use std::ptr::NonNull;

/// A shared library. It stays open until the process ends, because it may have started threads.
pub struct Library(NonNull<c_void>);

// SAFETY: the system's functions for libraries may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the library `name`, which the system looks for, and runs its initialisers.
    ///
    /// # Errors
    /// If there is none, or the program is static and cannot open any.
    pub fn open(name: &CStr) -> io::Result<Library> {
        // SAFETY: `name` ends with a zero byte. The caller names a library of the system, whose initialisers any program
        // that is linked with it would run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library).ok_or_else(|| io::Error::other(last_error()))
    }

    /// Address of the function or variable `name`; `None` if the library has none.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is that of an open library, and `name` ends with a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// Text of the last error of this thread.
fn last_error() -> String {
    // SAFETY: the text is valid until this thread calls such a function again.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { c"unknown error" } else { CStr::from_ptr(text) }
    };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let Err(error) = Library::open(c"libno-such-library.so.9") else { panic!("opened") };
        let is_static = cfg!(target_feature = "crt-static");
        assert!(is_static || error.to_string().contains("libno-such-library"), "{error}");
    }

    #[test]
    #[cfg(not(target_feature = "crt-static"))]
    fn functions_are_found_by_name() {
        let library = Library::open(c"libc.so.6").or_else(|_| Library::open(c"libc.so")).unwrap();
        assert!(library.symbol(c"getpid").is_some());
        assert!(library.symbol(c"no_such_function").is_none());
    }
}
