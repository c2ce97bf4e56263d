//! Reads a file's bytes in order; each read names what it is for.

/// A position in `bytes` that only moves forward.
pub(super) struct GgufReader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> GgufReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> GgufReader<'a> {
        GgufReader { bytes, pos: 0 }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The bytes from `start` to the position.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.pos]
    }

    pub(super) fn take(&mut self, what: &str, len: u64) -> Result<&'a [u8], String> {
        let end = usize::try_from(len).ok().and_then(|len| self.pos.checked_add(len));
        let Some(taken) = end.and_then(|end| self.bytes.get(self.pos..end)) else {
            let (at, have) = (self.pos, self.bytes.len());
            return Err(format!(
                "truncated or damaged: {what} at byte {at} of {have} does not fit"
            ));
        };
        self.pos += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of at most `max`.
    pub(super) fn count(&mut self, what: &str, max: u64) -> Result<u64, String> {
        let count = self.u64(what)?;
        if count > max {
            return Err(format!("damaged: the {what} is {count}, wanted at most {max}"));
        }
        Ok(count)
    }

    /// A u64 length and as many bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8], String> {
        let len = self.u64(what)?;
        self.take(what, len)
    }
}
