//! Keys and nonces of links with a shared key: ChaCha20-Poly1305 under keys that HKDF-SHA256
//! (RFC 5869) derives from each session's key exchange.
//!
//! A nonce is kind, chunk and frame number (or the counter), so that no two different payloads of a generation share a
//! nonce: a retransmitted chunk has equal bytes, counters only grow, and the sender ends a session before frame numbers
//! repeat.
//!
//! Keys belong to a *generation*. The connector begins a new generation from time to time. The listener follows at the
//! first datagram that only the next generation opens. The header does not say the generation, and payloads sealed in
//! the previous one still open. Each generation is derived from the one before it; the way back is impossible.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Tag as AeadTag};
use hkdf::Hkdf;
use sha2::Sha256;

use super::WireError;
use super::datagram::{DatagramHeader, DatagramKind, TAG_BYTES};
use super::hello::Tag;
use super::noise::{End, Ephemeral, SharedSecret};

/// The secret that all nodes of a ring share.
#[derive(Clone)]
pub struct Key {
    secret: [u8; KEY_BYTES],
    /// The key for the key exchange, derived from the secret.
    exchanged: [u8; KEY_BYTES],
}

/// Bytes of a [`Key`].
pub const KEY_BYTES: usize = 32;

impl Key {
    /// The key with these bytes.
    pub fn new(secret: [u8; KEY_BYTES]) -> Key {
        Key { secret, exchanged: derive(&secret, "LEAP exchange", &[]) }
    }

    /// The tag over `parts` that proves this key; `label` keeps uses apart.
    pub fn tag(&self, label: &str, parts: &[&[u8]]) -> Tag {
        tag(&self.secret, label, parts)
    }

    /// An end of a key exchange.
    pub fn end<'a>(&'a self, ephemeral: &'a Ephemeral, prologue: &'a [u8]) -> End<'a> {
        End { key: &self.exchanged, ephemeral, prologue }
    }
}

/// Keys that seal and open the payloads of one session.
#[derive(Clone)]
pub struct SessionKeys {
    proof: [u8; KEY_BYTES],
    before: Option<Generation>,
    now: Generation,
    next: Generation,
    /// Source of the generation after `next`.
    chain: [u8; KEY_BYTES],
    /// Whether a payload that the neighbour sealed in this generation was opened.
    is_followed: bool,
}

/// The keys of one generation, one for each direction and for data.
#[derive(Clone)]
struct Generation {
    data: ChaCha20Poly1305,
    forward: ChaCha20Poly1305,
    back: ChaCha20Poly1305,
}

impl Generation {
    /// The generation that `chain` stands for. Replaces `chain` by that of the generation after it.
    fn take(chain: &mut [u8; KEY_BYTES]) -> Generation {
        let kdf = Hkdf::<Sha256>::new(None, chain);
        let cipher = |label: &str| ChaCha20Poly1305::new(&expand::<KEY_BYTES>(&kdf, label).into());
        *chain = expand(&kdf, "LEAP next generation");
        Generation {
            data: cipher("LEAP data"),
            forward: cipher("LEAP control forward"),
            back: cipher("LEAP control back"),
        }
    }

    fn cipher(&self, kind: DatagramKind) -> &ChaCha20Poly1305 {
        match kind {
            DatagramKind::Data => &self.data,
            kind if kind.is_forward() => &self.forward,
            _ => &self.back,
        }
    }

    /// Decrypts `payload` in place. On failure, returns `false` and leaves `payload` as it was.
    fn open(
        &self,
        header: &DatagramHeader,
        bytes: &[u8],
        payload: &mut [u8],
        tag: &AeadTag,
    ) -> bool {
        let nonce = nonce(header).into();
        let cipher = self.cipher(header.kind);
        cipher.decrypt_inout_detached(&nonce, &bytes[..28], payload.into(), tag).is_ok()
    }
}

impl SessionKeys {
    /// The keys of the session whose key exchange gave this secret.
    pub fn new(shared: &SharedSecret) -> SessionKeys {
        let kdf = Hkdf::<Sha256>::new(None, shared);
        let mut chain = expand(&kdf, "LEAP generations");
        SessionKeys {
            proof: expand(&kdf, "LEAP proof"),
            before: None,
            now: Generation::take(&mut chain),
            next: Generation::take(&mut chain),
            chain,
            is_followed: false,
        }
    }

    /// Begins the next generation.
    pub fn advance(&mut self) {
        let next = Generation::take(&mut self.chain);
        let now = std::mem::replace(&mut self.next, next);
        self.before = Some(std::mem::replace(&mut self.now, now));
        self.is_followed = false;
    }

    /// Whether a payload that the neighbour sealed in this generation was opened.
    pub fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Encrypts `payload` in place; its last [`TAG_BYTES`] become the seal.
    ///
    /// `header` and `bytes` are the header that will be sent, except for its checksum.
    ///
    /// # Panics
    /// If `payload` is shorter than a seal.
    pub fn seal(&self, header: &DatagramHeader, bytes: &[u8], payload: &mut [u8]) {
        let plain_bytes = payload.len() - TAG_BYTES;
        let (plain, seal) = payload.split_at_mut(plain_bytes);
        let sealed = self.now.cipher(header.kind).encrypt_inout_detached(
            &nonce(header).into(),
            &bytes[..28],
            plain.into(),
        );
        let tag = sealed.expect("a datagram is shorter than the cipher's limit");
        seal.copy_from_slice(&tag);
    }

    /// Decrypts `payload` in place and returns the length of the plain bytes. Advances to the next generation if the
    /// payload was sealed in it.
    ///
    /// # Errors
    /// [`WireError::Seal`] if no generation's key opens the payload; drop it then.
    pub fn open(
        &mut self,
        header: &DatagramHeader,
        bytes: &[u8],
        payload: &mut [u8],
    ) -> Result<usize, WireError> {
        let plain_bytes = payload.len().checked_sub(TAG_BYTES).ok_or(WireError::Seal)?;
        let (plain, seal) = payload.split_at_mut(plain_bytes);
        let tag = AeadTag::try_from(&*seal).map_err(|_| WireError::Seal)?;
        let mut opens = |generation: &Generation| generation.open(header, bytes, plain, &tag);
        if opens(&self.now) {
            self.is_followed = true;
        } else if opens(&self.next) {
            self.advance();
            self.is_followed = true;
        } else if !self.before.as_ref().is_some_and(opens) {
            return Err(WireError::Seal);
        }
        Ok(plain_bytes)
    }

    /// The tag over `parts` that proves to have made the same key exchange; `label` keeps uses apart.
    pub fn tag(&self, label: &str, parts: &[&[u8]]) -> Tag {
        tag(&self.proof, label, parts)
    }
}

/// Whether two tags are equal, in time that does not depend on where they differ.
pub fn is_equal(a: &Tag, b: &Tag) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    std::hint::black_box(differing) == 0
}

/// Unpredictable numbers from one seed: nonces, instances, ephemeral keys, and the listener's signing secret. Later
/// states do not reveal earlier numbers.
pub struct Randomness {
    seed: [u8; KEY_BYTES],
}

impl Randomness {
    /// A sequence that is unpredictable without `seed`.
    pub fn new(seed: [u8; KEY_BYTES]) -> Randomness {
        Randomness { seed }
    }

    /// The next `N` bytes.
    pub fn draw<const N: usize>(&mut self) -> [u8; N] {
        let kdf = Hkdf::<Sha256>::new(None, &self.seed);
        self.seed = expand(&kdf, "LEAP next seed");
        expand(&kdf, "LEAP random")
    }

    /// The next number, never 0.
    pub fn id(&mut self) -> u64 {
        u64::from_le_bytes(self.draw()).max(1)
    }
}

/// Derives `N` bytes from `secret` and `parts`; they are unpredictable without `secret`.
pub fn derive<const N: usize>(secret: &[u8; 32], label: &str, parts: &[&[u8]]) -> [u8; N] {
    use sha2::Digest;
    let mut hash = Sha256::new();
    for part in parts {
        // Lengths before the parts keep different lists of parts from giving equal input.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let kdf = Hkdf::<Sha256>::new(Some(&hash.finalize()), secret);
    expand(&kdf, label)
}

fn tag(secret: &[u8; KEY_BYTES], label: &str, parts: &[&[u8]]) -> Tag {
    derive(secret, label, parts)
}

fn expand<const N: usize>(kdf: &Hkdf<Sha256>, label: &str) -> [u8; N] {
    let mut out = [0; N];
    kdf.expand(label.as_bytes(), &mut out).expect("a few bytes are within HKDF's limit");
    out
}

fn nonce(header: &DatagramHeader) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[0] = header.kind as u8;
    nonce[2..4].copy_from_slice(&header.chunk.to_le_bytes());
    nonce[4..8].copy_from_slice(&header.seq.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::datagram::HEADER_LEN;

    fn header(kind: DatagramKind, seq: u32, chunk: u16) -> (DatagramHeader, [u8; HEADER_LEN]) {
        let header =
            DatagramHeader { kind, session: 1, seq, chunk, n_chunks: 3, frame_bytes: 3000 };
        let mut bytes = [0; HEADER_LEN];
        header.emit_for(&mut bytes, &[]);
        (header, bytes)
    }

    fn keys(shared: u8) -> SessionKeys {
        SessionKeys::new(&[shared; 64])
    }

    #[test]
    fn what_was_sealed_opens_again() {
        for (len, kind) in
            [(16, DatagramKind::Ping), (17, DatagramKind::Ack), (1400, DatagramKind::Data)]
        {
            let (header, bytes) = header(kind, 5, 2);
            let mut payload = vec![7; len];
            keys(1).seal(&header, &bytes, &mut payload);
            assert_eq!(keys(1).open(&header, &bytes, &mut payload), Ok(len - 16));
            assert_eq!(payload[..len - 16], vec![7; len - 16]);
        }
    }

    /// Another implementation gives these bytes, too. They do not depend on the CPU's instructions.
    #[test]
    fn a_sealed_payload_has_these_bytes() {
        let (header, bytes) = header(DatagramKind::Data, 5, 2);
        let mut payload = vec![7; 1400];
        keys(1).seal(&header, &bytes, &mut payload);
        assert_eq!(payload[..8], [78, 180, 143, 110, 196, 53, 58, 33]);
        let tag = [41, 224, 76, 222, 74, 17, 116, 146, 108, 212, 156, 100, 32, 20, 182, 201];
        assert_eq!(payload[1384..], tag);
    }

    #[test]
    fn other_keys_headers_and_payloads_do_not_open() {
        let (head, bytes) = header(DatagramKind::Data, 5, 2);
        let mut sealed = [7; 40];
        keys(1).seal(&head, &bytes, &mut sealed);
        let opens =
            |mut keys: SessionKeys, (head, bytes): (DatagramHeader, [u8; 32]), sealed: &[u8]| {
                keys.open(&head, &bytes, &mut sealed.to_vec()).is_ok()
            };
        assert!(opens(keys(1), (head, bytes), &sealed));
        assert!(!opens(keys(2), (head, bytes), &sealed));
        assert!(!opens(keys(1), header(DatagramKind::Data, 6, 2), &sealed));
        assert!(!opens(keys(1), header(DatagramKind::Data, 5, 1), &sealed));
        assert!(!opens(keys(1), header(DatagramKind::Ping, 5, 2), &sealed));
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(keys(1), (head, bytes), &damaged), "{bit}");
        }
        for len in 0..sealed.len() {
            assert!(!opens(keys(1), (head, bytes), &sealed[..len]), "{len}");
        }
    }

    #[test]
    fn keys_change_by_generation_and_the_listener_follows() {
        let (head, bytes) = header(DatagramKind::Data, 5, 2);
        let sealed = |keys: &SessionKeys| {
            let mut sealed = [7; 40];
            keys.seal(&head, &bytes, &mut sealed);
            sealed
        };
        let (mut ours, mut theirs) = (keys(1), keys(1));
        let generations: Vec<[u8; 40]> = (0..5)
            .map(|_| {
                let sealed = sealed(&ours);
                ours.advance();
                sealed
            })
            .collect();
        let mut open = |i: usize| theirs.open(&head, &bytes, &mut generations[i].clone()).is_ok();
        // In this generation, in the next, once more in the previous; never two ahead or behind.
        assert!(open(0) && !open(2) && open(1) && open(0) && open(1) && open(2));
        assert!(!open(0) && open(1) && !open(4) && open(3) && open(4));
        for (i, a) in generations.iter().enumerate() {
            assert!(generations[i + 1..].iter().all(|b| a != b));
        }
        // A failed attempt to open leaves the payload unchanged.
        let mut payload = generations[3];
        let mut late = keys(1);
        (0..3).for_each(|_| late.advance());
        assert_eq!(late.open(&head, &bytes, &mut payload), Ok(24));
        assert_eq!(payload[..24], [7; 24]);
        assert!(late.is_followed());
        late.advance();
        assert!(!late.is_followed());
        assert_eq!(late.open(&head, &bytes, &mut generations[3].clone()), Ok(24));
        assert!(!late.is_followed(), "that was of the generation before");
    }

    #[test]
    fn nonces_tell_every_datagram_of_a_session_apart() {
        let mut seen = std::collections::HashSet::new();
        for kind in [DatagramKind::Data, DatagramKind::Ping, DatagramKind::Pong, DatagramKind::Ack]
        {
            for seq in [0, 1, 255, 256, u32::MAX] {
                for chunk in [0, 1, 91, 256, u16::MAX] {
                    assert!(seen.insert(nonce(&header(kind, seq, chunk).0)));
                }
            }
        }
    }

    #[test]
    fn random_numbers_differ_and_repeat_by_seed() {
        let draw = |seed| {
            let mut randomness = Randomness::new([seed; 32]);
            [randomness.id(), randomness.id()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1)[0], draw(1)[1]);
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn derived_bytes_depend_on_every_part_and_where_it_ends() {
        let derive = |label, parts: &[&[u8]]| derive::<16>(&[1; 32], label, parts);
        assert_ne!(derive("a", &[b"ab", b"c"]), derive("a", &[b"a", b"bc"]));
        assert_ne!(derive("a", &[b"ab"]), derive("b", &[b"ab"]));
        assert_eq!(derive("a", &[b"ab"]), derive("a", &[b"ab"]));
    }
}
