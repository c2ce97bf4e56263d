//! The key that all boards of a ring share (`--key`).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Failure, warn};
use crate::wire::seal::{KEY_BYTES, Key};

/// Longest form of a key: 64 hexadecimal digits and a line break.
const FILE_BYTES_MAX: usize = 2 * KEY_BYTES + 2;
/// Fewest different bytes of a key: less than one random key in 10^14 has fewer.
const DISTINCT_MIN: usize = 16;

/// Reads the key in the file at `path`: 32 random bytes, or 64 hexadecimal digits. Warns if other users can
/// read the file.
pub(super) fn read(path: &Path) -> Result<Key, Failure> {
    let shown = path.display();
    let fail = |e| Failure::unreadable(path, &e);
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
    let secret = parse(&bytes).map_err(|problem| {
        let make = format!("head -c {KEY_BYTES} /dev/urandom > ring.key");
        Failure::Input(format!("key file {shown} {problem}; make one with: {make}"))
    })?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        warn(&format!("others may read the key file {shown}: chmod 600 {shown}"));
    }
    Ok(Key::new(secret))
}

fn parse(bytes: &[u8]) -> Result<[u8; KEY_BYTES], String> {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let secret = from_hex(line).or_else(|| bytes.try_into().ok()).ok_or_else(|| {
        let n = match bytes.len() {
            n if n > FILE_BYTES_MAX => "more".to_owned(),
            n => n.to_string(),
        };
        format!("has {n} bytes, wanted {KEY_BYTES} bytes or {} hexadecimal digits", 2 * KEY_BYTES)
    })?;
    if secret == bytes && secret.iter().all(|byte| matches!(byte, b'\t'..=b'\r' | b' '..=b'~')) {
        return Err("holds text, which can be guessed, and no random bytes".to_owned());
    }
    if secret.iter().collect::<BTreeSet<_>>().len() < DISTINCT_MIN {
        return Err("can be guessed: its bytes are not random".to_owned());
    }
    Ok(secret)
}

fn from_hex(digits: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let mut secret = [0; KEY_BYTES];
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    for (pair, out) in digits.as_chunks::<2>().0.iter().zip(&mut secret) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *out = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bytes_or_digits() {
        let random: [u8; KEY_BYTES] = std::array::from_fn(|i| (i * i * 7 + 130) as u8);
        assert_eq!(parse(&random), Ok(random));
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        for text in
            [digits.clone(), format!("{digits}\n"), format!("{}\r\n", digits.to_uppercase())]
        {
            assert_eq!(parse(text.as_bytes()), Ok(random), "{text:?}");
        }
        for len in [0, 1, 31, 33, 64, 66, 67] {
            let problem = parse(&vec![200; len]).unwrap_err();
            assert!(problem.contains("wanted 32 bytes or 64 hexadecimal digits"), "{problem}");
        }
        assert!(parse(format!("{}g", &digits[1..]).as_bytes()).is_err());
    }

    #[test]
    fn a_machine_without_files_left_is_no_fault_of_the_key() {
        let absent = read(Path::new("/no/such/ring.key"));
        assert!(matches!(absent, Err(Failure::Input(what)) if what.contains("/no/such/ring.key")));
        let shortage = std::io::Error::from_raw_os_error(libc::EMFILE);
        let failure = Failure::unreadable(Path::new("ring.key"), &shortage);
        assert!(matches!(failure, Failure::Runtime(_)));
    }

    #[test]
    fn keys_that_can_be_guessed_are_refused() {
        let weak: [&[u8]; 5] = [
            &[0; KEY_BYTES],
            &[0xa5; KEY_BYTES],
            b"correct horse battery staple 123",
            b"a passphrase, then a line break\n",
            &b"00".repeat(KEY_BYTES),
        ];
        for bytes in weak {
            assert!(parse(bytes).unwrap_err().contains("guessed"), "{bytes:?}");
        }
    }
}
