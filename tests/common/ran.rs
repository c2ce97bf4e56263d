//! A run of the program, seen from outside.

use std::process::Output;

/// Result of a finished run of the program.
#[allow(dead_code, reason = "every test crate compiles this module; not all start programs")]
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

#[allow(dead_code, reason = "every test crate compiles this module; not all start programs")]
impl Ran {
    pub(crate) fn new(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Checks the exit code, and that the failure is one line that contains `what`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, what: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.starts_with("leap: ") && self.err.contains(what), "{self:?}");
        assert_eq!(self.err.trim_end().lines().count(), 1, "{self:?}");
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        self
    }

    /// The output as JSON objects, one in each line.
    #[cfg(feature = "tools")]
    #[track_caller]
    pub(crate) fn objects(&self) -> Vec<serde_json::Value> {
        let object = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        self.out.lines().map(object).collect()
    }
}
