//! PyTorch files made here, valid and invalid.

use crate::export::checkpoint::Stored;

/// A tensor in the table of a PyTorch file.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) class: &'static str,
    /// Name of the storage.
    pub(crate) key: String,
    /// Length of the storage that the entry gives, in values.
    pub(crate) len: i64,
    pub(crate) offset: i64,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
}

/// A PyTorch file.
#[derive(Clone, Default)]
pub(crate) struct TorchFile {
    pub(crate) entries: Vec<Entry>,
    /// Storages by name.
    pub(crate) storages: Vec<(String, Vec<u8>)>,
}

impl TorchFile {
    /// A file in which each tensor has a storage of its own.
    pub(crate) fn new<'a>(tensors: impl Iterator<Item = (&'a String, &'a Stored)>) -> TorchFile {
        let mut file = TorchFile::default();
        for (index, (name, tensor)) in tensors.enumerate() {
            let class = match tensor.dtype {
                "F32" => "FloatStorage",
                "F16" => "HalfStorage",
                "BF16" => "BFloat16Storage",
                other => panic!("no test stores {other}"),
            };
            let shape: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
            let strides = (1..=shape.len()).map(|i| shape[i..].iter().product()).collect();
            file.entries.push(Entry {
                name: name.clone(),
                class,
                key: index.to_string(),
                len: shape.iter().product(),
                offset: 0,
                shape,
                strides,
            });
            file.storages.push((index.to_string(), tensor.bytes.clone()));
        }
        file
    }

    /// The entry of tensor `name`.
    pub(crate) fn entry(&mut self, name: &str) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.name == name).unwrap()
    }

    /// The files of the archive.
    pub(crate) fn files(&self) -> Vec<ZipFile> {
        let mut files = vec![
            ZipFile::new("model/data.pkl", self.pickle()),
            ZipFile::new("model/byteorder", b"little"),
        ];
        for (key, bytes) in &self.storages {
            files.push(ZipFile::new(&format!("model/data/{key}"), bytes));
        }
        files
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        zip(&self.files())
    }

    fn pickle(&self) -> Vec<u8> {
        let entries: Vec<u8> = self.entries.iter().flat_map(Entry::pickle).collect();
        [b"\x80\x02}(", &entries[..], b"u."].concat()
    }
}

impl Entry {
    fn pickle(&self) -> Vec<u8> {
        let storage = [
            b"(",
            &text("storage")[..],
            format!("ctorch\n{}\n", self.class).as_bytes(),
            &text(&self.key),
            &text("cpu"),
            &int(self.len),
            b"tQ",
        ]
        .concat();
        let sizes = |sizes: &[i64]| {
            let items: Vec<u8> = sizes.iter().flat_map(|&size| int(size)).collect();
            [b"(", &items[..], b"t"].concat()
        };
        [
            &text(&self.name)[..],
            b"ctorch._utils\n_rebuild_tensor_v2\n(",
            &storage,
            &int(self.offset),
            &sizes(&self.shape),
            &sizes(&self.strides),
            b"\x89ccollections\nOrderedDict\n)RtR",
        ]
        .concat()
    }
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn int(value: i64) -> Vec<u8> {
    [&[0x8a, 8], &value.to_le_bytes()[..]].concat()
}

/// A file of a zip archive, and its entry in the directory.
#[derive(Clone)]
pub(crate) struct ZipFile {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// Length before compression.
    pub(crate) len: u32,
    pub(crate) method: u16,
    pub(crate) flags: u16,
    /// True if the directory gives it the offset of the previous file.
    pub(crate) is_at_previous: bool,
}

impl ZipFile {
    pub(crate) fn new(name: &str, bytes: impl AsRef<[u8]>) -> ZipFile {
        let bytes = bytes.as_ref().to_vec();
        let len = bytes.len() as u32;
        ZipFile { name: name.to_owned(), bytes, len, method: 0, flags: 0, is_at_previous: false }
    }

    /// Bytes of version, flags, method, time, date, checksum (which PyTorch may leave out) and lengths.
    fn header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        header.extend(20_u16.to_le_bytes());
        header.extend(self.flags.to_le_bytes());
        header.extend(self.method.to_le_bytes());
        header.extend([0; 8]);
        header.extend((self.bytes.len() as u32).to_le_bytes());
        header.extend(self.len.to_le_bytes());
        header.extend((self.name.len() as u16).to_le_bytes());
        header.extend([0; 2]);
        header
    }
}

/// A zip archive.
pub(crate) fn zip(files: &[ZipFile]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    let mut previous = 0_u32;
    for file in files {
        let at = if file.is_at_previous { previous } else { bytes.len() as u32 };
        let header = file.header();
        bytes.extend([b"PK\x03\x04", &header[..], file.name.as_bytes(), &file.bytes].concat());
        let tail = [&[0; 10][..], &at.to_le_bytes(), file.name.as_bytes()].concat();
        directory.extend([b"PK\x01\x02\x14\0", &header[..], &tail].concat());
        previous = at;
    }
    let (at, len) = (bytes.len() as u32, directory.len() as u32);
    bytes.append(&mut directory);
    let count = (files.len() as u16).to_le_bytes();
    bytes.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count].concat());
    bytes.extend([&len.to_le_bytes()[..], &at.to_le_bytes(), &[0, 0]].concat());
    bytes
}
