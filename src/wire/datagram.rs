//! The header of everything that a link carries.
//!
//! ```text
//!  0 u32  magic "LEP1"
//!  4 u8   version of this header, 1
//!  5 u8   kind
//!  6 u16  chunk index of DATA; else high bits of the counter that starts at 16
//!  8 u64  session, 0 before there is one
//! 16 u32  number of the frame; else low bits of a counter
//! 20 u16  chunks of the whole frame; 1 for other kinds
//! 22 u16  payload bytes of this datagram; 0 in a stream's DATA, which says it at 24
//! 24 u32  bytes of the whole frame as it travels: every chunk but the last is full
//! 28 u32  CRC32 of bytes 0..28 and the payload
//! 32      payload
//! ```
//!
//! Over UDP a frame travels as chunks of at most [`CHUNK_BYTES`], one a datagram. A stream
//! carries each frame in one piece, with a `u32` in front that counts header and payload.

use super::WireError;
use super::fields::{u16_at, u32_at, u64_at};

/// "LEP1" in the wire's byte order.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LEP1");
/// Version of the header's layout.
pub const VERSION: u8 = 1;
/// Bytes before the payload.
pub const HEADER_LEN: usize = 32;
/// Most payload bytes of a datagram; all chunks of a frame but the last are this long.
pub const CHUNK_BYTES: usize = 1400;
/// Bytes of a datagram whose chunk is full.
pub const DATAGRAM_BYTES: usize = HEADER_LEN + CHUNK_BYTES;
/// Most chunks of a frame.
pub const CHUNKS_MAX: usize = 92;
/// Most bytes of a frame on the wire, seals included.
pub const SLOTS_BYTES: usize = CHUNKS_MAX * CHUNK_BYTES;
/// Bytes that a seal adds to each chunk.
pub const TAG_BYTES: usize = 16;
/// Most bytes of a frame before sealing. It is the same on every link: sealed frames must fit too.
pub const FRAME_MAX: usize = CHUNKS_MAX * (CHUNK_BYTES - TAG_BYTES);

/// Purpose of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DatagramKind {
    /// A chunk of a frame; in a stream, a whole frame.
    Data = 0,
    /// Acknowledgement: received frames, missing chunks, and how far the sender may go.
    Ack = 1,
    /// Asks for a [`DatagramKind::Pong`].
    Ping = 2,
    /// An acknowledgement that answers a ping.
    Pong = 3,
    /// Asks for a session.
    Hello = 4,
    /// Offers a session.
    Welcome = 5,
    /// Accepts the offered session.
    Confirm = 6,
    /// Gives the reason why there is no session.
    Refuse = 7,
    /// Part of a [`DatagramKind::Data`] datagram that is too long for its path.
    Piece = 8,
}

impl DatagramKind {
    const ALL: [DatagramKind; 9] = [
        DatagramKind::Data,
        DatagramKind::Ack,
        DatagramKind::Ping,
        DatagramKind::Pong,
        DatagramKind::Hello,
        DatagramKind::Welcome,
        DatagramKind::Confirm,
        DatagramKind::Refuse,
        DatagramKind::Piece,
    ];

    /// Whether the kind travels with the data, from a node to its next one; other kinds go back.
    pub fn is_forward(self) -> bool {
        matches!(
            self,
            DatagramKind::Data
                | DatagramKind::Ping
                | DatagramKind::Hello
                | DatagramKind::Confirm
                | DatagramKind::Piece
        )
    }
}

/// Whether `datagram`, one of our own, travels with the data.
///
/// # Panics
/// If it is shorter than a header.
pub fn is_forward(datagram: &[u8]) -> bool {
    DatagramKind::ALL.get(usize::from(datagram[5])).is_some_and(|kind| kind.is_forward())
}

/// A datagram whose length was checked; its fields were not.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Datagram<T> {
    /// Wraps `buffer`, the bytes of one datagram. No accessor panics after this check.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Oversize`], and [`WireError::Magic`] if it is not of this
    /// protocol and header version.
    pub fn new_checked(buffer: T) -> Result<Datagram<T>, WireError> {
        let have = buffer.as_ref().len();
        if have < HEADER_LEN {
            return Err(WireError::Truncated { need: HEADER_LEN, have });
        }
        if have > HEADER_LEN + SLOTS_BYTES {
            return Err(WireError::Oversize { len: have });
        }
        let datagram = Datagram { buffer };
        let bytes = datagram.buffer.as_ref();
        if u32_at(bytes, 0) != MAGIC || bytes[4] != VERSION {
            return Err(WireError::Magic);
        }
        Ok(datagram)
    }

    /// The header's 32 bytes.
    pub fn header_bytes(&self) -> &[u8] {
        &self.buffer.as_ref()[..HEADER_LEN]
    }

    /// The bytes behind the header.
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }

    /// The session in the header, not proven.
    pub fn session(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 8)
    }

    /// The header as words, like [`DatagramHeader::words`], with the checksum in the upper half of the last.
    pub fn words(&self) -> [u64; 4] {
        [0, 8, 16, 24].map(|at| u64_at(self.buffer.as_ref(), at))
    }

    /// The checksum in the header.
    pub fn crc(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 28)
    }

    /// Checks the checksum.
    ///
    /// # Errors
    /// [`WireError::Checksum`] if the datagram was damaged.
    pub fn prove(&self) -> Result<(), WireError> {
        match checksum(self.header_bytes(), self.payload()) == self.crc() {
            true => Ok(()),
            false => Err(WireError::Checksum),
        }
    }
}

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Purpose of the datagram.
    pub kind: DatagramKind,
    /// Session, 0 before there is one.
    pub session: u64,
    /// Number of the frame; for other kinds than DATA the low half of [`DatagramHeader::counter`].
    pub seq: u32,
    /// Index of the chunk in the frame; for other kinds the upper bits of [`DatagramHeader::counter`].
    pub chunk: u16,
    /// Chunks of the frame.
    pub n_chunks: u16,
    /// Bytes of the frame on the wire; for other kinds those of the payload.
    pub frame_bytes: u32,
}

impl DatagramHeader {
    /// A header of other kinds than DATA. `counter` has 48 bits.
    pub fn control(
        kind: DatagramKind,
        session: u64,
        counter: u64,
        payload_bytes: usize,
    ) -> DatagramHeader {
        DatagramHeader {
            kind,
            session,
            seq: counter as u32,
            chunk: (counter >> 32) as u16,
            n_chunks: 1,
            frame_bytes: payload_bytes as u32,
        }
    }

    /// The counter of kinds other than DATA.
    pub fn counter(&self) -> u64 {
        u64::from(self.chunk) << 32 | u64::from(self.seq)
    }

    /// The header of `datagram`, if it fits the payload and the checksum is right.
    ///
    /// # Errors
    /// [`WireError::Field`] for contradicting fields, [`WireError::Checksum`] for damaged bytes.
    pub fn parse<T: AsRef<[u8]>>(datagram: &Datagram<T>) -> Result<DatagramHeader, WireError> {
        let header = DatagramHeader::parse_unproven(datagram)?;
        datagram.prove()?;
        Ok(header)
    }

    /// The header of `datagram`, if it fits the payload. The checksum is not checked.
    ///
    /// # Errors
    /// [`WireError::Field`] for contradicting fields.
    pub fn parse_unproven<T: AsRef<[u8]>>(
        datagram: &Datagram<T>,
    ) -> Result<DatagramHeader, WireError> {
        let bytes = datagram.header_bytes();
        let header = DatagramHeader::fields(bytes)?;
        let payload = datagram.payload();
        if header.payload_bytes() != payload.len() {
            return Err(WireError::Field("payload_bytes"));
        }
        // A stream's frame may be too long for this field, which is 0 then.
        let said = usize::from(u16_at(bytes, 22));
        if said != header.payload_field() {
            return Err(WireError::Field("payload_bytes"));
        }
        Ok(header)
    }

    /// Reads and checks the fields, without the payload's length.
    fn fields(bytes: &[u8]) -> Result<DatagramHeader, WireError> {
        let kind = *DatagramKind::ALL.get(usize::from(bytes[5])).ok_or(WireError::Field("kind"))?;
        let header = DatagramHeader {
            kind,
            chunk: u16_at(bytes, 6),
            session: u64_at(bytes, 8),
            seq: u32_at(bytes, 16),
            n_chunks: u16_at(bytes, 20),
            frame_bytes: u32_at(bytes, 24),
        };
        header.check()?;
        Ok(header)
    }

    /// Checks that the fields fit each other.
    ///
    /// # Errors
    /// [`WireError::Field`] names a field that does not.
    pub fn check(&self) -> Result<(), WireError> {
        let bytes = self.frame_bytes as usize;
        if self.kind != DatagramKind::Data {
            return match (self.n_chunks, bytes) {
                (1, 0..=CHUNK_BYTES) => Ok(()),
                (1, _) => Err(WireError::Field("payload_bytes")),
                _ => Err(WireError::Field("n_chunks")),
            };
        }
        if bytes == 0 || bytes > SLOTS_BYTES {
            return Err(WireError::Field("frame_bytes"));
        }
        let is_whole = self.n_chunks == 1;
        if !is_whole && usize::from(self.n_chunks) != bytes.div_ceil(CHUNK_BYTES) {
            return Err(WireError::Field("n_chunks"));
        }
        if self.chunk >= self.n_chunks {
            return Err(WireError::Field("chunk"));
        }
        Ok(())
    }

    /// Bytes of this datagram's payload.
    pub fn payload_bytes(&self) -> usize {
        let bytes = self.frame_bytes as usize;
        match self.n_chunks {
            1 => bytes,
            n if usize::from(self.chunk) + 1 < usize::from(n) => CHUNK_BYTES,
            n => bytes - (usize::from(n) - 1) * CHUNK_BYTES,
        }
    }

    fn payload_field(&self) -> usize {
        match self.payload_bytes() {
            bytes if bytes > CHUNK_BYTES => 0,
            bytes => bytes,
        }
    }

    /// The header in little-endian words, without the checksum.
    ///
    /// # Panics
    /// If the header's fields contradict each other: only our own senders emit.
    pub fn words(&self) -> [u64; 4] {
        let kinds = u64::from(VERSION) | (self.kind as u64) << 8 | u64::from(self.chunk) << 16;
        let sizes = u64::from(self.n_chunks) | (self.payload_field() as u64) << 16;
        [
            u64::from(MAGIC) | kinds << 32,
            self.session,
            u64::from(self.seq) | sizes << 32,
            self.frame_bytes.into(),
        ]
    }

    /// Writes every byte of the header. `crc` gets the first 28 bytes and returns the checksum, which may be that of an
    /// earlier transmission.
    ///
    /// # Panics
    /// If the header's fields contradict each other: only our own senders emit.
    pub fn emit(&self, header: &mut [u8; HEADER_LEN], crc: impl FnOnce(&[u8]) -> u32) {
        emit_words(self.words(), header);
        let crc = crc(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Writes the header and the checksum over it and `payload`.
    pub fn emit_for(&self, header: &mut [u8; HEADER_LEN], payload: &[u8]) {
        self.emit(header, |header| checksum(header, payload));
    }
}

/// Splits `message` into the datagrams that the system received as one. All but the last have the length in the first
/// one's header.
pub fn split(message: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let bytes = match message.len() {
        whole @ 0..HEADER_LEN => whole.max(1),
        _ => HEADER_LEN + usize::from(u16_at(message, 22)),
    };
    message.chunks_mut(bytes)
}

/// Writes a header from its words.
pub fn emit_words(words: [u64; 4], header: &mut [u8; HEADER_LEN]) {
    for (word, out) in words.iter().zip(header.as_chunks_mut().0) {
        *out = word.to_le_bytes();
    }
}

/// CRC32 of a header's first 28 bytes and the payload.
pub fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..28]);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(chunk: u16, n_chunks: u16, frame_bytes: u32) -> DatagramHeader {
        DatagramHeader {
            kind: DatagramKind::Data,
            session: 0x0102,
            seq: 7,
            chunk,
            n_chunks,
            frame_bytes,
        }
    }

    fn emitted(header: &DatagramHeader) -> Vec<u8> {
        let payload = vec![0x5a; header.payload_bytes()];
        let mut bytes = [0xa5; HEADER_LEN];
        header.emit_for(&mut bytes, &payload);
        [&bytes[..], &payload].concat()
    }

    fn parse(bytes: &[u8]) -> Result<DatagramHeader, WireError> {
        DatagramHeader::parse(&Datagram::new_checked(bytes)?)
    }

    #[test]
    fn what_is_emitted_parses_to_the_same() {
        let stream = data(0, 1, SLOTS_BYTES as u32);
        let control = DatagramHeader::control(DatagramKind::Ack, 9, 0x1234_5678_9abc, 16);
        for header in [data(0, 2, 1401), data(1, 2, 1401), data(91, 92, 128_800), stream, control] {
            assert_eq!(parse(&emitted(&header)), Ok(header));
        }
        assert_eq!(control.counter(), 0x1234_5678_9abc);
    }

    #[test]
    fn a_packet_has_these_bytes() {
        let mut bytes = [0xa5; HEADER_LEN];
        data(1, 2, 1402).emit_for(&mut bytes, b"ab");
        let wanted = [
            b'L', b'E', b'P', b'1', 1, 0, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 2, 0,
            0x7a, 5, 0, 0,
        ];
        assert_eq!(bytes[..28], wanted);
        assert_eq!(bytes[28..], checksum(&wanted, b"ab").to_le_bytes());
    }

    #[test]
    fn datagrams_that_came_as_one_are_told_apart() {
        for frame_bytes in [1_u32, 1400, 1401, 2800, 3000, 16_384] {
            let n_chunks = frame_bytes.div_ceil(1400) as u16;
            let sent: Vec<_> =
                (0..n_chunks).map(|i| emitted(&data(i, n_chunks, frame_bytes))).collect();
            let mut message = sent.concat();
            assert!(split(&mut message).eq(sent.iter().map(|datagram| &datagram[..])));
        }
    }

    #[test]
    fn nonsense_is_told_apart_in_pieces_that_cover_it() {
        for len in 0..200 {
            for fill in [0, 1, 0xff] {
                let mut message = vec![fill; len];
                assert_eq!(split(&mut message).map(|piece| piece.len()).sum::<usize>(), len);
            }
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = emitted(&data(1, 2, 1500));
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn every_changed_bit_is_refused() {
        let bytes = emitted(&data(1, 3, 2900));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bytes).is_err(), "{bit}");
        }
    }

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let forged = |change: fn(&mut [u8])| {
            let mut bytes = emitted(&data(0, 2, 2800));
            change(&mut bytes);
            let crc = checksum(&bytes[..28], &bytes[HEADER_LEN..]);
            bytes[28..32].copy_from_slice(&crc.to_le_bytes());
            parse(&bytes)
        };
        assert!(forged(|_| ()).is_ok());
        assert_eq!(forged(|b| b[5] = 9), Err(WireError::Field("kind")));
        assert_eq!(forged(|b| b[6] = 2), Err(WireError::Field("chunk")));
        assert_eq!(forged(|b| b[7] = 0xff), Err(WireError::Field("chunk")));
        assert_eq!(forged(|b| b[20] = 0), Err(WireError::Field("n_chunks")));
        assert_eq!(forged(|b| b[20] = 3), Err(WireError::Field("n_chunks")));
        assert_eq!(forged(|b| b[20] = 1), Err(WireError::Field("payload_bytes")));
        assert_eq!(forged(|b| b[22] = 0), Err(WireError::Field("payload_bytes")));
        assert_eq!(forged(|b| b[24..28].fill(0)), Err(WireError::Field("frame_bytes")));
        assert_eq!(forged(|b| b[24..28].fill(0xff)), Err(WireError::Field("frame_bytes")));
        assert_eq!(forged(|b| b[4] = 2), Err(WireError::Magic));
    }
}
