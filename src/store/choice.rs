//! The GGUF models of a repository, and the choice among them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::format::Shard;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoFile {
    /// Path in the repository, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

/// A GGUF model of a repository, in one file or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GgufModel {
    /// Quantisation by the file's name, as in `Q4_K_M`; the name itself if it has none.
    pub(crate) quant: String,
    /// Path without `.gguf`, and without the number of the file if there are several.
    stem: String,
    /// Number of files, by the first one's name.
    n_files: usize,
    pub(crate) files: Vec<RepoFile>,
}

/// Memory and speed of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineRoom {
    /// Bytes that a model may take.
    pub(crate) memory_bytes: u64,
    /// Bytes that the machine reads in a second.
    pub(crate) bytes_per_s: f64,
}

impl MachineRoom {
    /// Part of the memory's speed at which weights are read.
    const SPEED: f64 = 0.85;
    /// Tokens a second below which reading along becomes waiting.
    pub(crate) const TOKENS_PER_S: f64 = 5.0;
    /// Bytes for keys, values, buffers and the rest of the system.
    const SPARE_BYTES: u64 = 512 << 20;

    /// Whether a model of `bytes` fits into the memory.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        bytes.saturating_add(MachineRoom::SPARE_BYTES.min(bytes)) <= self.memory_bytes
    }

    /// Tokens a second of a dense model of `bytes`.
    pub(crate) fn tokens_per_s(&self, bytes: u64) -> f64 {
        self.bytes_per_s * MachineRoom::SPEED / bytes.max(1) as f64
    }
}

impl GgufModel {
    /// Length of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    /// Whether all files are there.
    pub(crate) fn is_whole(&self) -> bool {
        self.files.len() == self.n_files
    }

    /// Path of the file, or of several without their numbers: no other model has it.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.gguf", self.stem)
    }

    /// Whether `quant` names this model: its quantisation, its file's name or path.
    fn is_called(&self, quant: &str) -> bool {
        let name = self.stem.rsplit('/').next().unwrap_or_default();
        match quant.strip_suffix(".gguf") {
            Some(file) => [name, &self.stem].iter().any(|own| own.eq_ignore_ascii_case(file)),
            None => {
                let all = [&self.quant, name, &self.stem];
                all.iter().any(|own| own.eq_ignore_ascii_case(quant))
            }
        }
    }

    /// The quantisation without Unsloth's mark.
    fn kind(&self) -> &str {
        self.quant.strip_prefix("UD-").unwrap_or(&self.quant)
    }

    /// Whether weights are stored as they were trained: LEAP quantises them to 8 bits.
    fn is_unquantised(&self) -> bool {
        UNQUANTISED.contains(&self.kind())
    }

    /// Whether LEAP reads this quantisation, as far as the name tells.
    fn is_readable(&self) -> bool {
        !["IQ1", "IQ2", "IQ3", "TQ", "Q1_", "Q4_0_"].iter().any(|no| self.kind().starts_with(no))
    }

    /// Whether the weights have two bits, which cost a model much of what it knows.
    fn has_two_bits(&self) -> bool {
        self.kind().starts_with("Q2_K")
    }

    /// Bytes of the weights as LEAP keeps them: floats become 8 bits.
    fn kept_bytes(&self) -> u64 {
        let bytes = self.bytes();
        match self.kind() {
            "F32" | "FP32" => bytes / 64 * 17,
            "F16" | "FP16" | "BF16" => bytes / 32 * 17,
            _ => bytes,
        }
    }
}

/// Names of weights that were not quantised.
const UNQUANTISED: [&str; 5] = ["F16", "F32", "BF16", "FP16", "FP32"];

/// The GGUF models among `files`. Vision parts, adapters and calibration data are none.
pub(crate) fn models(files: &[RepoFile]) -> Vec<GgufModel> {
    let mut found: Vec<GgufModel> = Vec::new();
    // A model in one file and one in several may have the same name.
    let mut places: BTreeMap<(String, usize), usize> = BTreeMap::new();
    let mut files: Vec<&RepoFile> = files.iter().collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    for file in files {
        let path = Path::new(&file.path);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(stem) = file.path.strip_suffix(".gguf") else { continue };
        if is_beside(name) {
            continue;
        }
        let shard = Shard::of(path);
        let first = match shard {
            Some(shard) => format!("{}{}", &stem[..stem.len() + 5 - name.len()], shard.stem),
            None => stem.to_owned(),
        };
        let n_files = shard.and_then(|shard| shard.count.parse().ok()).unwrap_or(1);
        let place = (first.clone(), shard.map_or(0, |_| n_files));
        if let Some(at) = places.get(&place) {
            found[*at].files.push(file.clone());
            continue;
        }
        places.insert(place, found.len());
        let quant = quant_of(first.rsplit('/').next().unwrap_or_default());
        found.push(GgufModel { quant, stem: first, n_files, files: vec![file.clone()] });
    }
    found
}

/// Whether a file of this name goes with a model: a vision part, an adapter, or calibration data.
fn is_beside(name: &str) -> bool {
    let stem = name.to_ascii_lowercase();
    let stem = stem.trim_end_matches(".gguf");
    stem.contains("mmproj")
        || stem.starts_with("lora")
        || stem.starts_with("imatrix")
        || stem.ends_with("imatrix")
}

/// The quantisation in a file's name: its last part that starts like one, and those behind it. `UD-` of Unsloth's files
/// stays.
fn quant_of(stem: &str) -> String {
    const STARTS: [&str; 10] = ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q8", "IQ", "TQ", "MXFP4"];
    let upper = stem.to_ascii_uppercase();
    let parts = upper.split(['-', '.']);
    let is_quant = |part: &&str| {
        UNQUANTISED.contains(part) || STARTS.iter().any(|start| part.starts_with(start))
    };
    match parts.rev().find(is_quant) {
        Some(part) if is_dynamic(&upper, part) => format!("UD-{part}"),
        Some(part) => part.to_owned(),
        None => stem.to_owned(),
    }
}

/// Whether a name in capitals has Unsloth's mark before the quantisation `part`.
fn is_dynamic(upper: &str, part: &str) -> bool {
    let marked = format!("UD-{part}");
    upper.starts_with(&marked)
        || ["-", ".", "_"].iter().any(|c| upper.contains(&format!("{c}{marked}")))
}

/// The model among `models` that `quant` names, if there is one. The same model in one file goes before one in several.
///
/// # Errors
/// If several have this name: the names of their files.
pub(crate) fn named<'m>(
    models: &'m [GgufModel],
    quant: &str,
) -> Result<Option<&'m GgufModel>, String> {
    if let Some(model) = models.iter().find(|model| model.file_name() == quant) {
        return Ok(Some(model));
    }
    let mut called: Vec<&GgufModel> =
        models.iter().filter(|model| model.is_called(quant)).collect();
    called.sort_by_key(|model| model.n_files);
    called.dedup_by(|a, b| a.stem == b.stem);
    match called[..] {
        [model] => Ok(Some(model)),
        [] => Ok(None),
        [..] => {
            let files: Vec<String> = called.iter().map(|model| model.file_name()).collect();
            Err(format!("{} files are {quant}: name one of {}", called.len(), files.join(", ")))
        }
    }
}

/// The model that suits the machine best: the largest up to Q8_0 that fits into the memory and gives 5 tokens a second; if
/// none is that fast, the smallest that fits, and Q2_K only if no other does. Weights of floats, which LEAP quantises, come
/// last.
///
/// # Errors
/// If none fits, how much the smallest takes; or that LEAP reads none.
pub(crate) fn best<'m>(
    models: &'m [GgufModel],
    room: &MachineRoom,
) -> Result<&'m GgufModel, String> {
    let most = models.iter().find(|model| model.quant == "Q8_0").map_or(u64::MAX, GgufModel::bytes);
    let is_wanted = |model: &&GgufModel| {
        model.is_readable() && model.is_whole() && (model.is_unquantised() || model.bytes() <= most)
    };
    let mut sorted: Vec<&GgufModel> = models.iter().filter(is_wanted).collect();
    if sorted.is_empty() {
        return Err(format!(
            "LEAP reads none of {}, or some of their files are missing",
            quants(models)
        ));
    }
    sorted.sort_by_key(|model| model.kept_bytes());
    let fits = || sorted.iter().copied().filter(|model| room.holds(model.kept_bytes()));
    let is_quick =
        |model: &&GgufModel| room.tokens_per_s(model.kept_bytes()) >= MachineRoom::TOKENS_PER_S;
    let kept = fits().filter(|model| !model.is_unquantised()).rfind(is_quick);
    let smallest = || fits().find(|model| !model.has_two_bits()).or_else(|| fits().next());
    kept.or_else(smallest).ok_or_else(|| {
        let smallest = sorted.iter().map(|model| model.kept_bytes()).min().unwrap_or(0);
        let (smallest, memory) = (smallest as f64 / 1e9, room.memory_bytes as f64 / 1e9);
        format!(
            "the smallest of {} takes {smallest:.1} GB, and {memory:.1} GB of memory are free",
            quants(models)
        )
    })
}

/// The quantisations of `models` in words.
pub(crate) fn quants(models: &[GgufModel]) -> String {
    let all: Vec<&str> = models.iter().map(|model| &*model.quant).collect();
    match all[..] {
        [] => "none".to_owned(),
        _ => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, u64)]) -> Vec<RepoFile> {
        all.iter().map(|(path, mb)| RepoFile { path: path.to_string(), bytes: mb << 20 }).collect()
    }

    #[test]
    fn quantisations_are_read_from_names() {
        for (stem, quant) in [
            ("SmolLM2-135M-Instruct-Q4_K_M", "Q4_K_M"),
            ("qwen2.5-0.5b-instruct-q8_0", "Q8_0"),
            ("tinyllama-1.1b-chat-v1.0.Q4_0", "Q4_0"),
            ("gemma-3-1b-it-UD-Q4_K_XL", "UD-Q4_K_XL"),
            ("Llama-3.2-1B.IQ4_XS", "IQ4_XS"),
            ("m-BF16", "BF16"),
            ("gpt-oss-20b-mxfp4", "MXFP4"),
            ("m-fp16", "FP16"),
            ("Thundercloud-Q4_K_M", "Q4_K_M"),
            ("UD-Q8_K_XL", "UD-Q8_K_XL"),
            ("model", "model"),
        ] {
            assert_eq!(quant_of(stem), quant);
        }
    }

    #[test]
    fn files_of_one_model_stand_together() {
        let found = models(&files(&[
            ("Q8_0/m-Q8_0-00002-of-00002.gguf", 3),
            ("Q8_0/m-Q8_0-00001-of-00002.gguf", 4),
            ("m-Q4_0.gguf", 2),
            ("big-Q4_1-00001-of-00003.gguf", 2),
            ("mmproj-m-f16.gguf", 9),
            ("README.md", 1),
        ]));
        let all: Vec<_> =
            found.iter().map(|m| (&*m.quant, m.bytes() >> 20, m.is_whole())).collect();
        assert_eq!(all, [("Q8_0", 7, true), ("Q4_1", 2, false), ("Q4_0", 2, true)]);
        assert_eq!(found[0].files[0].path, "Q8_0/m-Q8_0-00001-of-00002.gguf");
        for name in ["q8_0", "Q8_0/m-Q8_0", "m-Q8_0.gguf"] {
            assert_eq!(named(&found, name).unwrap().unwrap().quant, "Q8_0");
        }
        assert_eq!(named(&found, "Q5_0"), Ok(None));
    }

    #[test]
    fn files_of_one_quantisation_are_told_apart() {
        let found = models(&files(&[
            ("m-Q8_0.gguf", 1),
            ("old/m-Q8_0.gguf", 1),
            ("n-Q4_0.gguf", 1),
            ("n-Q4_0-00001-of-00002.gguf", 1),
            ("n-Q4_0-00002-of-00002.gguf", 1),
            ("n-Q4_0.gguf", 1),
            ("Model-imatrix-Q5_0.gguf", 1),
            ("imatrix_x.gguf", 1),
            ("lora-x.gguf", 1),
        ]));
        assert_eq!(named(&found, "m-Q8_0.gguf").unwrap().unwrap().files[0].path, "m-Q8_0.gguf");
        let problem = named(&found, "Q8_0").unwrap_err();
        assert_eq!(problem, "2 files are Q8_0: name one of m-Q8_0.gguf, old/m-Q8_0.gguf");
        assert_eq!(named(&found, "Q4_0").unwrap().unwrap().files.len(), 1);
        assert!(named(&found, "Q5_0").unwrap().is_some());
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn largest_quick_model_that_fits_is_taken() {
        let found = models(&files(&[
            ("m-Q2_K.gguf", 1000),
            ("m-Q4_K_M.gguf", 2000),
            ("m-Q8_0.gguf", 4000),
            ("m-F16.gguf", 8000),
        ]));
        let choice = |mb: u64, gb_per_s: f64| {
            let room = MachineRoom { memory_bytes: mb << 20, bytes_per_s: gb_per_s * 1e9 };
            best(&found, &room).map(|model| model.quant.clone())
        };
        assert_eq!(choice(16_000, 40.0).unwrap(), "Q8_0");
        assert_eq!(choice(16_000, 16.0).unwrap(), "Q4_K_M");
        assert_eq!(choice(3000, 40.0).unwrap(), "Q4_K_M");
        assert_eq!(choice(16_000, 1.0).unwrap(), "Q4_K_M");
        assert_eq!(choice(1600, 40.0).unwrap(), "Q2_K");
        assert!(choice(1000, 40.0).unwrap_err().contains("1.0 GB"));
        let odd = models(&files(&[
            ("m-IQ2_XXS.gguf", 500),
            ("m-Q2_K.gguf", 1000),
            ("m-Q8_0.gguf", 4000),
            ("m-UD-Q8_K_XL.gguf", 5000),
            ("m-fp16.gguf", 8000),
        ]));
        let choice = |mb: u64| {
            let room = MachineRoom { memory_bytes: mb << 20, bytes_per_s: 4e11 };
            best(&odd, &room).map(|model| model.quant.clone())
        };
        assert_eq!(choice(64_000).unwrap(), "Q8_0");
        assert_eq!(choice(3600).unwrap(), "Q2_K");
        let only = models(&files(&[("m-F16.gguf", 100)]));
        let room = MachineRoom { memory_bytes: 1 << 30, bytes_per_s: 4e10 };
        assert_eq!(best(&only, &room).unwrap().quant, "F16");
    }
}
