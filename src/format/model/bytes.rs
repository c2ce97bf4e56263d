//! Parses and emits headers.

use super::header::{
    Architecture, FileShare, HEADER_LEN, Header, MAGIC, Packed, RopeScaling, STOP_IDS_MAX,
};
use super::slice::{SLICE_LEN, Slice};
use super::weights::{Ends, Weights};
use crate::format::cursor::{Cursor, u32_at};
use crate::format::{ChatTemplate, FormatError, foreign_kind, stand_in};

const EXTENSION_AT: usize = 64;
const EXTENSION_MAGIC: u32 = u32::from_le_bytes(*b"LEAX");
const EXTENSION_LEN: usize = 132;
const PACKED_EXTENSION_LEN: usize = 148;
const PARTIAL_EXTENSION_LEN: usize = 168;
const FEATURES_EXTENSION_LEN: usize = 176;
const ROWS_EXTENSION_LEN: usize = 180;
const TYPES_EXTENSION_LEN: usize = 184;
/// Version of an extension with a block of features.
const FEATURES_VERSION: u32 = 2;
/// Added to the rows of a panel if a shared classifier is the packed embedding.
const SHARES_EMBEDDING: u32 = 1 << 16;
/// Added to the version of a file with packed matrices.
const PACKED: i32 = 256;
/// Added to the version of a file of some layers.
const PARTIAL: i32 = 512;
/// Added to the flag of a share's ends if the file holds only some rows.
const ROWS: u32 = 2;
pub(super) const CRC_AT: usize = 192;
const SHARE_AT: usize = 212;
const BLOCK_AT: usize = 232;
const ROWS_CRC_AT: usize = 240;
const TYPES_CRC_AT: usize = 244;

impl Header {
    /// Reads and checks the header of `file`, the whole file's bytes.
    ///
    /// After this every tensor of [`Header::tensors`] lies inside the file.
    ///
    /// # Errors
    /// The field that is wrong, or the tensor that does not fit.
    pub fn parse(file: &[u8]) -> Result<Header, FormatError> {
        if let Some(what) = stand_in(file) {
            return Err(FormatError::StandIn(what));
        }
        let mut r = Cursor::new(file);
        let magic = r.u32("magic")?;
        if magic != MAGIC {
            return Err(FormatError::NoModel(foreign_kind(file)));
        }
        let version = r.i32("version")?;
        let bytes = Cursor::new(file).take("header", HEADER_LEN)?;
        let (is_packed, is_partial) = (version & PACKED != 0, version & PARTIAL != 0);
        let mut header = Header::parse_base(&mut r, version & !(PACKED | PARTIAL))?;
        let has_types = header.weights == Weights::Ggml;
        let form = Form { is_packed, is_partial, has_block: false, has_rows: false, has_types };
        let table = match u32_at(bytes, EXTENSION_AT) {
            EXTENSION_MAGIC => {
                let form = form.of_extension(bytes)?;
                let table = header.parse_extension(bytes, form)?;
                header.parse_features(file, form)?;
                header.parse_types_of(file)?;
                header.parse_slice(file, form)?;
                Some(table)
            }
            _ if form.is_plain() && bytes[EXTENSION_AT..].iter().all(|&b| b == 0) => None,
            found => return Err(FormatError::BadMagic { wanted: EXTENSION_MAGIC, found }),
        };
        header.check()?;
        header.check_extents(file.len() as u64, table)?;
        Ok(header)
    }

    fn parse_base(r: &mut Cursor<'_>, version: i32) -> Result<Header, FormatError> {
        let dim = positive(r, "dim")?;
        let ffn_dim = positive(r, "ffn_dim")?;
        let n_layers = positive(r, "n_layers")?;
        let n_heads = positive(r, "n_heads")?;
        let n_kv_heads = positive(r, "n_kv_heads")?;
        let vocab = r.i32("vocab_size")?;
        let negated = version == 1 && vocab < 0;
        let vocab_size = match vocab.unsigned_abs() {
            size if size > 0 && size <= i32::MAX as u32 && (vocab > 0 || negated) => size as usize,
            _ => return Err(FormatError::field("vocab_size", vocab, "above 0")),
        };
        let max_seq_len = positive(r, "max_seq_len")?;
        let shared = r.u8("shared_classifier")?;
        if shared > 1 {
            return Err(FormatError::field("shared_classifier", i32::from(shared), "0 or 1"));
        }
        let group = r.i32("group_size")?;
        let weights = match version {
            1 => Weights::F32,
            2 => Weights::Q8 { group: usize::try_from(group).unwrap_or(0) },
            3 => Weights::Q4 { group: usize::try_from(group).unwrap_or(0), int8_embedding: false },
            4 => Weights::B2 { group: usize::try_from(group).unwrap_or(0), ends: Ends::FourBits },
            5 => Weights::Ggml,
            _ => return Err(FormatError::field("version", version, "1 to 5")),
        };
        Ok(Header {
            dim,
            ffn_dim,
            n_layers,
            n_heads,
            n_kv_heads,
            vocab_size,
            max_seq_len,
            shared_classifier: shared == 1 && !negated,
            head_dim: dim / n_heads,
            ..Header::blank(weights)
        })
    }

    /// Reads the extension. Returns offset and length of the checksum table.
    fn parse_extension(&mut self, bytes: &[u8], form: Form) -> Result<(u64, u64), FormatError> {
        let mut r = Cursor::new(bytes);
        r.take("base header, version and length", EXTENSION_AT + 12)?;
        let flags = r.u32("flags")?;
        self.weights = self
            .weights
            .with_flags(flags)
            .ok_or_else(|| FormatError::Unsupported(format!("header flags {flags:#x}")))?;
        self.has_extension = true;
        self.head_dim = r.u32("head_dim")? as usize;
        self.norm_eps = r.f32("norm_eps")?;
        self.rope_theta = r.f64("rope_theta")?;
        self.rope_scaling = parse_scaling(&mut r)?;
        self.sliding_window = match r.u32("sliding_window")? {
            0 => None,
            window => Some(window as usize),
        };
        self.architecture = parse_architecture(&mut r)?;
        self.bos = match r.i32("bos")? {
            -1 => None,
            id => Some(
                u32::try_from(id)
                    .map_err(|_| FormatError::field("bos", id, "an id, or -1 for none"))?,
            ),
        };
        self.stop_ids = parse_stop_ids(&mut r)?;
        let template = r.u32("chat_template")?;
        self.chat_template = u8::try_from(template)
            .ok()
            .and_then(ChatTemplate::from_id)
            .ok_or_else(|| FormatError::Unsupported(format!("chat template id {template}")))?;
        self.tokenizer_hash = r.u64("tokenizer_hash")?;
        let table = (r.u64("checksum table offset")?, r.u64("checksum table length")?);
        r.take("header checksum", 4)?;
        let packed = parse_packed(&mut r)?;
        self.packed = form.is_packed.then_some(packed);
        let is_partial = form.is_partial;
        self.share = is_partial.then(|| parse_share(&mut r)).transpose()?;
        Ok(table)
    }

    /// Reads the block of features if `file` has one.
    fn parse_features(&mut self, file: &[u8], form: Form) -> Result<(), FormatError> {
        if form.has_block {
            let [len, crc] = [0, 4].map(|at| u32_at(file, BLOCK_AT + at));
            return self.parse_block(file, (len, crc));
        }
        match self.has_block() {
            true => {
                Err(FormatError::Unsupported("a model whose features stand nowhere".to_owned()))
            }
            false => Ok(()),
        }
    }

    /// Reads the block of types if `file` has one.
    fn parse_types_of(&mut self, file: &[u8]) -> Result<(), FormatError> {
        let len = self.types_len();
        if len == 0 {
            return Ok(());
        }
        let mut r = Cursor::new(file);
        r.take("header", HEADER_LEN + self.block_len())?;
        let bytes = r.take("types of blocks", len)?;
        if crc32fast::hash(bytes) != u32_at(file, TYPES_CRC_AT) {
            return Err(FormatError::Checksum { what: "types of blocks".to_owned() });
        }
        self.parse_types(bytes)
    }

    /// Reads the block of rows if `file` has one.
    fn parse_slice(&mut self, file: &[u8], form: Form) -> Result<(), FormatError> {
        if !form.has_rows {
            return Ok(());
        }
        let mut r = Cursor::new(file);
        r.take("header", HEADER_LEN + self.block_len() + self.types_len())?;
        let bytes = r.take("rows", SLICE_LEN)?;
        if crc32fast::hash(bytes) != u32_at(file, ROWS_CRC_AT) {
            return Err(FormatError::Checksum { what: "rows".to_owned() });
        }
        let slice = Slice::parse(bytes)?;
        self.share.iter_mut().for_each(|share| share.slice = Some(slice.clone()));
        Ok(())
    }

    /// Length of the header in bytes, including the blocks between it and the tensors.
    pub fn len_bytes(&self) -> usize {
        let rows = if self.slice().is_some() { SLICE_LEN } else { 0 };
        HEADER_LEN + self.block_len() + self.types_len() + rows
    }

    /// Bytes of the header, [`Header::len_bytes`] of them.
    ///
    /// # Panics
    /// If there are more than [`STOP_IDS_MAX`] stop ids, or if there is no extension but the file is packed,
    /// a share, or has features or types of blocks.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = [0; HEADER_LEN];
        let mut w = HeaderWriter { bytes: &mut bytes, pos: 0 };
        w.put(&MAGIC.to_le_bytes());
        let packed = if self.packed.is_some() { PACKED } else { 0 };
        let partial = if self.share.is_some() { PARTIAL } else { 0 };
        w.put(&(self.weights.version() + packed + partial).to_le_bytes());
        let vocab = match (self.weights, self.shared_classifier) {
            (Weights::F32, false) => -(self.vocab_size as i32),
            _ => self.vocab_size as i32,
        };
        for value in [self.dim, self.ffn_dim, self.n_layers, self.n_heads, self.n_kv_heads] {
            w.put(&(value as i32).to_le_bytes());
        }
        w.put(&vocab.to_le_bytes());
        w.put(&(self.max_seq_len as i32).to_le_bytes());
        w.put(&[u8::from(self.shared_classifier)]);
        if let Some(group) = self.weights.group() {
            w.put(&(group as i32).to_le_bytes());
        }
        assert!(self.has_extension || self.form().is_plain());
        let block = self.emit_block();
        let types = self.emit_types();
        let rows = self.slice().map_or(Vec::new(), Slice::emit);
        if self.has_extension {
            w.pos = EXTENSION_AT;
            self.emit_extension(&mut w);
            if !block.is_empty() {
                w.pos = BLOCK_AT;
                w.put(&(block.len() as u32).to_le_bytes());
                w.put(&crc32fast::hash(&block).to_le_bytes());
            }
            for (block, at) in [(&rows, ROWS_CRC_AT), (&types, TYPES_CRC_AT)] {
                if !block.is_empty() {
                    w.pos = at;
                    w.put(&crc32fast::hash(block).to_le_bytes());
                }
            }
            let crc = header_crc(&bytes);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        [&bytes[..], &block, &types, &rows].concat()
    }

    fn emit_extension(&self, w: &mut HeaderWriter<'_>) {
        assert!(self.stop_ids.len() <= STOP_IDS_MAX);
        w.put(&EXTENSION_MAGIC.to_le_bytes());
        let version = if self.has_block() { FEATURES_VERSION } else { 1 };
        w.put(&version.to_le_bytes());
        w.put(&(self.form().extension_len() as u32).to_le_bytes());
        w.put(&self.weights.flags().to_le_bytes());
        w.put(&(self.head_dim as u32).to_le_bytes());
        w.put(&self.norm_eps.to_le_bytes());
        w.put(&self.rope_theta.to_le_bytes());
        emit_scaling(self.rope_scaling, w);
        w.put(&(self.sliding_window.unwrap_or(0) as u32).to_le_bytes());
        w.put(&(self.architecture as u32).to_le_bytes());
        w.put(&self.bos.map_or(-1, |id| id as i32).to_le_bytes());
        w.put(&(self.stop_ids.len() as u32).to_le_bytes());
        for i in 0..STOP_IDS_MAX {
            w.put(&self.stop_ids.get(i).copied().unwrap_or(0).to_le_bytes());
        }
        w.put(&u32::from(self.chat_template as u8).to_le_bytes());
        w.put(&self.tokenizer_hash.to_le_bytes());
        w.put(&self.tensors_end().to_le_bytes());
        w.put(&(4 * self.n_tensors() as u64).to_le_bytes());
        if let Some(packed) = self.packed {
            w.pos = CRC_AT + 4;
            w.put(&packed.layout.to_le_bytes());
            let shares = if packed.shares_embedding { SHARES_EMBEDDING } else { 0 };
            w.put(&(packed.panel_rows as u32 | shares).to_le_bytes());
            w.put(&packed.fingerprint.to_le_bytes());
        }
        if let Some(share) = &self.share {
            w.pos = SHARE_AT;
            w.put(&(share.layers.start as u32).to_le_bytes());
            w.put(&(share.layers.end as u32).to_le_bytes());
            let rows = if share.slice.is_some() { ROWS } else { 0 };
            w.put(&(u32::from(share.has_ends) | rows).to_le_bytes());
            w.put(&share.fingerprint.to_le_bytes());
        }
    }

    fn form(&self) -> Form {
        Form {
            is_packed: self.packed.is_some(),
            is_partial: self.share.is_some(),
            has_block: self.has_block(),
            has_rows: self.slice().is_some(),
            has_types: self.weights == Weights::Ggml,
        }
    }
}

/// Layout of the file, apart from the format of weights.
#[derive(Clone, Copy)]
struct Form {
    is_packed: bool,
    is_partial: bool,
    has_block: bool,
    has_rows: bool,
    has_types: bool,
}

impl Form {
    fn is_plain(self) -> bool {
        !self.is_packed && !self.is_partial && !self.has_block && !self.has_types
    }

    /// Adds what the extension in the header `bytes` says. Checks the header's checksum and the extension's
    /// length.
    fn of_extension(self, bytes: &[u8]) -> Result<Form, FormatError> {
        let mut r = Cursor::new(bytes);
        r.take("base header", EXTENSION_AT + 4)?;
        let version = r.u32("extension version")?;
        if version != 1 && version != FEATURES_VERSION {
            return Err(FormatError::Unsupported(format!("header extension version {version}")));
        }
        let has_rows = self.is_partial && u32_at(bytes, SHARE_AT + 8) & ROWS != 0;
        let form = Form { has_block: version == FEATURES_VERSION, has_rows, ..self };
        if u32_at(bytes, CRC_AT) != header_crc(bytes) {
            return Err(FormatError::Checksum { what: "header".to_owned() });
        }
        let (len, wanted) = (r.u32("extension length")?, form.extension_len());
        match len as usize == wanted {
            true => Ok(form),
            false => Err(FormatError::field("extension length", len, wanted.to_string())),
        }
    }

    fn extension_len(self) -> usize {
        match self {
            Form { has_types: true, .. } => TYPES_EXTENSION_LEN,
            Form { has_rows: true, .. } => ROWS_EXTENSION_LEN,
            Form { has_block: true, .. } => FEATURES_EXTENSION_LEN,
            Form { is_partial: true, .. } => PARTIAL_EXTENSION_LEN,
            Form { is_packed: true, .. } => PACKED_EXTENSION_LEN,
            _ => EXTENSION_LEN,
        }
    }
}

fn parse_architecture(r: &mut Cursor<'_>) -> Result<Architecture, FormatError> {
    let id = r.u32("architecture")?;
    let known = Architecture::ALL.into_iter().find(|known| *known as u32 == id);
    known.ok_or_else(|| FormatError::Unsupported(format!("architecture id {id}")))
}

fn parse_packed(r: &mut Cursor<'_>) -> Result<Packed, FormatError> {
    let (layout, rows) = (r.u32("layout")?, r.u32("rows of a panel")?);
    Ok(Packed {
        layout,
        panel_rows: (rows & !SHARES_EMBEDDING) as usize,
        shares_embedding: rows & SHARES_EMBEDDING != 0,
        fingerprint: r.u64("fingerprint")?,
    })
}

fn parse_share(r: &mut Cursor<'_>) -> Result<FileShare, FormatError> {
    let (first, end) = (r.u32("first layer")?, r.u32("layer after the last")?);
    let has_ends = match r.u32("embedding and classifier")? & !ROWS {
        0 => false,
        1 => true,
        other => return Err(FormatError::field("embedding and classifier", other, "0 or 1")),
    };
    let layers = first as usize..end as usize;
    Ok(FileShare { layers, has_ends, fingerprint: r.u64("fingerprint")?, slice: None })
}

fn parse_scaling(r: &mut Cursor<'_>) -> Result<Option<RopeScaling>, FormatError> {
    let kind = r.u32("rope scaling")?;
    let original_ctx = r.u32("rope original context")?;
    let factor = r.f32("rope factor")?;
    let low_freq_factor = r.f32("rope low_freq_factor")?;
    let high_freq_factor = r.f32("rope high_freq_factor")?;
    match kind {
        0 => Ok(None),
        1 => Ok(Some(RopeScaling::Linear { factor })),
        2 => Ok(Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_ctx,
        })),
        3 | 4 => Ok(Some(RopeScaling::Yarn {
            factor,
            beta_slow: low_freq_factor,
            beta_fast: high_freq_factor,
            original_ctx,
            is_truncated: kind == 4,
        })),
        5 => Ok(Some(RopeScaling::Divisors)),
        _ => Err(FormatError::Unsupported(format!("rope scaling kind {kind}"))),
    }
}

fn emit_scaling(scaling: Option<RopeScaling>, w: &mut HeaderWriter<'_>) {
    let (kind, original_ctx, factors) = match scaling {
        None => (0u32, 0, [0.0; 3]),
        Some(RopeScaling::Linear { factor }) => (1, 0, [factor, 0.0, 0.0]),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_ctx }) => {
            (2, original_ctx, [factor, low_freq_factor, high_freq_factor])
        }
        Some(RopeScaling::Yarn { factor, beta_slow, beta_fast, original_ctx, is_truncated }) => {
            (if is_truncated { 4 } else { 3 }, original_ctx, [factor, beta_slow, beta_fast])
        }
        Some(RopeScaling::Divisors) => (5, 0, [0.0; 3]),
    };
    w.put(&kind.to_le_bytes());
    w.put(&original_ctx.to_le_bytes());
    for factor in factors {
        w.put(&factor.to_le_bytes());
    }
}

fn parse_stop_ids(r: &mut Cursor<'_>) -> Result<Vec<u32>, FormatError> {
    let n = r.u32("number of stop ids")?;
    if n as usize > STOP_IDS_MAX {
        return Err(FormatError::field("number of stop ids", n, "at most 8"));
    }
    let mut ids = Vec::with_capacity(STOP_IDS_MAX);
    for i in 0..STOP_IDS_MAX {
        let id = r.u32("stop id")?;
        if i < n as usize {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn positive(r: &mut Cursor<'_>, name: &'static str) -> Result<usize, FormatError> {
    let value = r.i32(name)?;
    match usize::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(FormatError::field(name, value, "above 0")),
    }
}

pub(super) fn header_crc(bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..CRC_AT]);
    crc.update(&[0; 4]);
    crc.update(&bytes[CRC_AT + 4..HEADER_LEN]);
    crc.finalize()
}

struct HeaderWriter<'a> {
    bytes: &'a mut [u8; HEADER_LEN],
    pos: usize,
}

impl HeaderWriter<'_> {
    fn put(&mut self, value: &[u8]) {
        self.bytes[self.pos..self.pos + value.len()].copy_from_slice(value);
        self.pos += value.len();
    }
}
