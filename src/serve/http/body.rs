//! The body of a request that comes in chunks.

use super::HttpError;

/// Longest line before a chunk, in bytes: the chunk's length and its extensions.
const LINE_MAX: usize = 256;
/// Most bytes of the header fields after the last chunk, and most such fields.
const TRAILER_MAX: usize = 8 << 10;
const TRAILER_FIELDS_MAX: usize = 64;

/// State of the parser of a chunked body: the kind of its next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkStep {
    /// More has to be read first.
    Wait,
    /// `line` bytes of a line, `data` bytes of the body, and a line break.
    Data { line: usize, data: usize },
    /// The body ends after `bytes` more bytes.
    End { bytes: usize },
}

/// Looks at the start of `bytes`, where a chunk begins. A chunk may have up to `max` bytes.
pub(super) fn chunk(bytes: &[u8], max: usize) -> Result<ChunkStep, HttpError> {
    let bad = || HttpError::new(400, "a chunk of the body is malformed");
    let (line, data) = match httparse::parse_chunk_size(bytes) {
        Ok(httparse::Status::Complete(found)) => found,
        Ok(httparse::Status::Partial) if bytes.len() > LINE_MAX => return Err(bad()),
        Ok(httparse::Status::Partial) => return Ok(ChunkStep::Wait),
        Err(_) => return Err(bad()),
    };
    if data == 0 {
        return end(bytes, line);
    }
    let data = usize::try_from(data).ok().filter(|&data| data <= max);
    let data = data.ok_or_else(|| HttpError::new(413, "the body is too long"))?;
    match bytes.get(line + data..line + data + 2) {
        None => Ok(ChunkStep::Wait),
        Some(b"\r\n") => Ok(ChunkStep::Data { line, data }),
        Some(_) => Err(bad()),
    }
}

/// The end of the body. Fields may follow the last chunk (RFC 9112, section 7.1.2); nothing here needs them.
fn end(bytes: &[u8], line: usize) -> Result<ChunkStep, HttpError> {
    let trailer = bytes.get(line..).unwrap_or_default();
    let too_long = || HttpError::new(431, "the fields behind the last chunk are too long");
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
    match httparse::parse_headers(trailer, &mut fields) {
        Ok(httparse::Status::Complete((n, _))) if n <= TRAILER_MAX => {
            Ok(ChunkStep::End { bytes: line + n })
        }
        Ok(httparse::Status::Partial) if trailer.len() < TRAILER_MAX => Ok(ChunkStep::Wait),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(too_long()),
        Err(_) => Err(HttpError::new(400, "the fields behind the last chunk are malformed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_found_when_they_are_complete() {
        assert_eq!(chunk(b"", 9), Ok(ChunkStep::Wait));
        assert_eq!(chunk(b"3\r\nab", 9), Ok(ChunkStep::Wait));
        assert_eq!(chunk(b"3\r\nabc\r\n0", 9), Ok(ChunkStep::Data { line: 3, data: 3 }));
        assert_eq!(chunk(b"3;x=y\r\nabc\r\n", 9), Ok(ChunkStep::Data { line: 7, data: 3 }));
        assert_eq!(chunk(b"0\r\n\r\nGET", 9), Ok(ChunkStep::End { bytes: 5 }));
    }

    #[test]
    fn fields_behind_the_last_chunk_are_passed_over() {
        assert_eq!(chunk(b"0\r\nX: y\r\n\r\nGET", 9), Ok(ChunkStep::End { bytes: 11 }));
        assert_eq!(chunk(b"0\r\nX: y\r\n", 9), Ok(ChunkStep::Wait));
        assert_eq!(chunk(b"0;a=b\r\n\r", 9), Ok(ChunkStep::Wait));
    }

    #[test]
    fn malformed_chunks_are_refused() {
        let status = |bytes: &[u8]| chunk(bytes, 9).unwrap_err().status;
        assert_eq!(status(b"3\r\nabcd\r\n"), 400);
        assert_eq!(status(b"g\r\n"), 400);
        assert_eq!(status(b"-1\r\n"), 400);
        assert_eq!(status(b"a\r\n"), 413);
        assert_eq!(status(b"ffffffffffffffff\r\n"), 413);
        assert_eq!(status(b"0\r\nX\r\n\r\n"), 400);
        assert_eq!(status(format!("0\r\nX: {}", "y".repeat(TRAILER_MAX)).as_bytes()), 431);
        assert_eq!(status(format!("0\r\n{}\r\n", "X: y\r\n".repeat(65)).as_bytes()), 431);
        assert_eq!(status(format!("1;{}", "x".repeat(LINE_MAX)).as_bytes()), 400);
    }
}
