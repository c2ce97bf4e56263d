//! The key exchange of links with a shared key: the Noise Protocol Framework's (revision 34)
//! `Noise_NNpsk0_25519_ChaChaPoly_SHA256`.
//!
//! ```text
//! -> psk, e        in HELLO; everything before it in the HELLO is the prologue
//! <- e, ee         in WELCOME
//! ```
//!
//! Each message is an ephemeral public key and a tag. The shared secret depends on both ephemeral secrets, which are
//! forgotten: an attacker who records a link and steals the key later can decrypt nothing. A caller passes in its end's
//! ephemeral secret, so that a stateless caller can derive it again.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Tag};
use curve25519_dalek::constants::X25519_BASEPOINT;
use curve25519_dalek::montgomery::MontgomeryPoint;
use sha2::{Digest, Sha256};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

use super::talk::Talk;

const NAME: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const POINT_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
/// Bytes of a message.
pub const MESSAGE_LEN: usize = POINT_BYTES + TAG_BYTES;

/// A message of the exchange, in either direction.
pub type Message = [u8; MESSAGE_LEN];
/// Source of an end's ephemeral key: unpredictable bytes, used for one exchange.
pub type Ephemeral = [u8; 32];
/// Secret that only the two ends know after an exchange.
pub type SharedSecret = [u8; 64];

/// One end of an exchange.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// The secret that both ends have.
    pub key: &'a [u8; 32],
    /// This end's ephemeral secret.
    pub ephemeral: &'a Ephemeral,
    /// Bytes that both ends have seen.
    pub prologue: &'a [u8],
}

impl End<'_> {
    fn build(&self, is_connector: bool) -> Result<HandshakeState, Error> {
        let params: NoiseParams = NAME.parse()?;
        let resolver = Box::new(Primitives { ephemeral: *self.ephemeral });
        let builder = Builder::with_resolver(params, resolver).prologue(self.prologue)?;
        let builder = builder.psk(0, self.key)?;
        if is_connector { builder.build_initiator() } else { builder.build_responder() }
    }

    fn begin(&self) -> Result<(HandshakeState, Message), Error> {
        let mut state = self.build(true)?;
        let mut message = [0; MESSAGE_LEN];
        state.write_message(&[], &mut message)?;
        Ok((state, message))
    }

    /// The connector's message. Equal ends give equal messages.
    pub fn greeting(&self) -> Message {
        self.begin().expect("the parameters and lengths are right").1
    }

    /// Whether the sender of `greeting` has the key and saw the prologue. This end's ephemeral secret is not used.
    pub fn is_greeted(&self, greeting: &Message) -> bool {
        let read = |mut state: HandshakeState| state.read_message(greeting, &mut []);
        self.build(false).and_then(read).is_ok()
    }

    /// The listener's message to the sender of `greeting`, and their shared secret; `None` if the sender
    /// lacks the key.
    pub fn answer(&self, greeting: &Message) -> Option<(Message, SharedSecret)> {
        let mut state = self.build(false).ok()?;
        state.read_message(greeting, &mut []).ok()?;
        let mut message = [0; MESSAGE_LEN];
        state.write_message(&[], &mut message).ok()?;
        Some((message, shared(&mut state)))
    }

    /// The secret shared with the sender of `answer`; `None` if the sender lacks the key, or answered another greeting.
    pub fn finish(&self, answer: &Message) -> Option<SharedSecret> {
        let (mut state, _) = self.begin().ok()?;
        state.read_message(answer, &mut []).ok()?;
        Some(shared(&mut state))
    }
}

impl End<'_> {
    /// Answers like [`answer`](Self::answer); also returns the channel for what follows.
    pub fn accept(&self, greeting: &Message) -> Option<(Message, Talk)> {
        let mut state = self.build(false).ok()?;
        state.read_message(greeting, &mut []).ok()?;
        let mut message = [0; MESSAGE_LEN];
        state.write_message(&[], &mut message).ok()?;
        Some((message, Talk::new(state.into_transport_mode().ok()?)))
    }

    /// Finishes like [`finish`](Self::finish); returns the channel for what follows.
    pub fn conclude(&self, answer: &Message) -> Option<Talk> {
        let (mut state, _) = self.begin().ok()?;
        state.read_message(answer, &mut []).ok()?;
        Some(Talk::new(state.into_transport_mode().ok()?))
    }
}

fn shared(state: &mut HandshakeState) -> SharedSecret {
    let (forward, back) = state.dangerously_get_raw_split();
    let mut shared = [0; 64];
    shared[..32].copy_from_slice(&forward);
    shared[32..].copy_from_slice(&back);
    shared
}

/// The primitives that links use in any case, and the curve.
struct Primitives {
    ephemeral: Ephemeral,
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Given(self.ephemeral)))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<X25519>::default() as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::<Hasher>::default() as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::<ChaChaPoly>::default() as _)
    }
}

/// Randomness that the caller passed in: exactly the bytes of one key.
struct Given(Ephemeral);

impl Random for Given {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        if bytes.len() != self.0.len() {
            return Err(Error::Rng);
        }
        bytes.copy_from_slice(&self.0);
        Ok(())
    }
}

#[derive(Default)]
struct X25519 {
    secret: [u8; POINT_BYTES],
    public: [u8; POINT_BYTES],
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        POINT_BYTES
    }

    fn priv_len(&self) -> usize {
        POINT_BYTES
    }

    fn set(&mut self, secret: &[u8]) {
        self.secret.copy_from_slice(secret);
        self.public = X25519_BASEPOINT.mul_clamped(self.secret).to_bytes();
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut secret = [0; POINT_BYTES];
        random.try_fill_bytes(&mut secret)?;
        self.set(&secret);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.secret
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let point = public.first_chunk().ok_or(Error::Dh)?;
        let shared = MontgomeryPoint(*point).mul_clamped(self.secret).to_bytes();
        // A point of low order: its sender would know the result without a secret.
        if shared == [0; POINT_BYTES] {
            return Err(Error::Dh);
        }
        out[..POINT_BYTES].copy_from_slice(&shared);
        Ok(())
    }
}

#[derive(Default)]
struct Hasher(Sha256);

impl Hash for Hasher {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&std::mem::take(&mut self.0).finalize());
    }
}

#[derive(Default)]
struct ChaChaPoly {
    key: [u8; 32],
}

impl ChaChaPoly {
    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(&self.key.into())
    }
}

/// Four bytes of zero, then the counter.
fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.key = *key;
    }

    fn encrypt(&self, counter: u64, seen: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (sealed, rest) = out.split_at_mut(plain.len());
        sealed.copy_from_slice(plain);
        let nonce = nonce(counter).into();
        let tag = self.cipher().encrypt_inout_detached(&nonce, seen, sealed.into());
        rest[..TAG_BYTES].copy_from_slice(&tag.expect("a message is shorter than the limit"));
        plain.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        counter: u64,
        seen: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let len = sealed.len().checked_sub(TAG_BYTES).ok_or(Error::Decrypt)?;
        let (sealed, tag) = sealed.split_at(len);
        let tag = Tag::try_from(tag).map_err(|_| Error::Decrypt)?;
        let plain = out.get_mut(..len).ok_or(Error::Decrypt)?;
        plain.copy_from_slice(sealed);
        let nonce = nonce(counter).into();
        let opened = self.cipher().decrypt_inout_detached(&nonce, seen, plain.into(), &tag);
        opened.map(|()| len).map_err(|_| Error::Decrypt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [1; 32];
    const A: End<'_> = End { key: &KEY, ephemeral: &[2; 32], prologue: b"LEAP prologue" };
    const B: End<'_> = End { ephemeral: &[3; 32], ..A };

    const GREETING: Message = [
        206, 141, 58, 209, 204, 182, 51, 236, 123, 112, 193, 120, 20, 165, 199, 110, 205, 2, 150,
        133, 5, 13, 52, 71, 69, 186, 5, 135, 14, 88, 125, 89, 125, 143, 217, 77, 38, 64, 186, 20,
        82, 35, 92, 3, 51, 180, 27, 156,
    ];
    const ANSWER: Message = [
        93, 254, 221, 59, 107, 212, 127, 111, 162, 142, 225, 93, 150, 157, 91, 176, 234, 83, 119,
        77, 72, 139, 218, 249, 223, 28, 110, 1, 36, 179, 239, 34, 120, 253, 44, 126, 179, 225, 19,
        181, 230, 167, 176, 121, 13, 11, 114, 168,
    ];
    const SHARED: SharedSecret = [
        131, 55, 241, 44, 67, 94, 151, 88, 158, 231, 113, 20, 3, 178, 85, 210, 227, 48, 133, 73,
        203, 216, 123, 192, 188, 157, 48, 10, 250, 201, 186, 78, 102, 249, 146, 75, 204, 6, 125,
        225, 203, 234, 11, 233, 157, 46, 152, 68, 245, 226, 229, 51, 224, 19, 94, 226, 211, 66,
        134, 184, 115, 98, 60, 4,
    ];

    /// Other implementations of the primitives give these bytes, too.
    #[test]
    fn an_exchange_has_these_bytes() {
        let greeting = A.greeting();
        let (answer, shared) = B.answer(&greeting).unwrap();
        assert_eq!(greeting, GREETING);
        assert_eq!(answer, ANSWER);
        assert_eq!(shared, SHARED);
        assert_eq!(A.finish(&answer), Some(shared));
    }

    #[test]
    fn only_both_ends_of_one_exchange_share() {
        let greeting = A.greeting();
        let (answer, shared) = B.answer(&greeting).unwrap();
        assert!(B.is_greeted(&greeting));
        for other in [End { key: &[9; 32], ..B }, End { prologue: b"LEAP", ..B }] {
            assert!(!other.is_greeted(&greeting) && other.answer(&greeting).is_none());
        }
        for other in [
            End { key: &[9; 32], ..A },
            End { prologue: b"LEAP", ..A },
            // An attacker who knows the key and recorded the whole exchange.
            End { ephemeral: &[9; 32], ..A },
        ] {
            assert_eq!(other.finish(&answer), None);
        }
        let other = End { ephemeral: &[4; 32], ..B }.answer(&greeting).unwrap();
        assert!(other.0 != answer && other.1 != shared);
    }

    #[test]
    fn every_changed_bit_is_refused() {
        let greeting = A.greeting();
        let (answer, _) = B.answer(&greeting).unwrap();
        for bit in 0..8 * MESSAGE_LEN {
            let flip = |message: &Message| {
                let mut message = *message;
                message[bit / 8] ^= 1 << (bit % 8);
                message
            };
            assert!(!B.is_greeted(&flip(&greeting)), "{bit}");
            assert_eq!(A.finish(&flip(&answer)), None, "{bit}");
        }
    }

    #[test]
    fn points_of_low_order_are_refused() {
        let mut end = X25519::default();
        end.set(&[5; 32]);
        let mut out = [0; 32];
        assert!(end.dh(&[0; 32], &mut out).is_err());
        assert!(end.dh(&[9; 32], &mut out).is_ok());
    }
}
