//! Checkpoints of FP8 and int8 weights with scales of their own give the model file of the products.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::export::checkpoint::{
    Checkpoint, Dims, SMALL, Stored, export, options, safetensors, store,
};
use crate::export::families;

type Change<'c> = &'c dyn Fn(&mut Tensors);
type Tensors = BTreeMap<String, Stored>;

/// Shape of the scales of matrices of a shape, and the rows and columns that share one.
type Share = fn(&[usize]) -> (Vec<usize>, [usize; 2]);

/// How the weights of a checkpoint are stored.
#[derive(Clone, Copy)]
struct Form {
    /// Method, and how it is named more closely.
    method: [&'static str; 2],
    dtype: &'static str,
    /// End of the names of scales.
    scales: &'static str,
    shape: Share,
    dtype_of_scales: &'static str,
}

fn whole(shape: &[usize]) -> (Vec<usize>, [usize; 2]) {
    let [.., rows, cols] = *shape else { panic!("{shape:?}") };
    (shape[..shape.len() - 2].to_vec(), [rows, cols])
}

fn rows(shape: &[usize]) -> (Vec<usize>, [usize; 2]) {
    ([&shape[..shape.len() - 1], &[1]].concat(), [1, *shape.last().unwrap()])
}

fn blocks(shape: &[usize]) -> (Vec<usize>, [usize; 2]) {
    let [ref matrices @ .., rows, cols] = *shape else { panic!("{shape:?}") };
    ([matrices, &[rows.div_ceil(128), cols.div_ceil(128)]].concat(), [128, 128])
}

const FORMS: [Form; 6] = [
    Form {
        method: ["fp8", ""],
        dtype: "F8_E4M3",
        scales: "_scale_inv",
        shape: whole,
        dtype_of_scales: "BF16",
    },
    Form {
        method: ["fp8", ""],
        dtype: "F8_E4M3",
        scales: "_scale_inv",
        shape: blocks,
        dtype_of_scales: "F32",
    },
    Form {
        method: ["fbgemm_fp8", ""],
        dtype: "F8_E4M3",
        scales: "_scale",
        shape: rows,
        dtype_of_scales: "F32",
    },
    Form {
        method: ["compressed-tensors", "float-quantized"],
        dtype: "F8_E4M3",
        scales: "_scale",
        shape: rows,
        dtype_of_scales: "BF16",
    },
    Form {
        method: ["compressed-tensors", "int-quantized"],
        dtype: "I8",
        scales: "_scale",
        shape: rows,
        dtype_of_scales: "BF16",
    },
    Form {
        method: ["modelopt", "FP8"],
        dtype: "F8_E4M3",
        scales: "_scale",
        shape: whole,
        dtype_of_scales: "F32",
    },
];

impl Form {
    fn config(&self) -> Value {
        let [method, form] = self.method;
        match method {
            "compressed-tensors" => {
                let weights = json!({"num_bits": 8, "strategy": "channel", "group_size": null,
                    "block_structure": null, "symmetric": true});
                let groups = json!({"group_0": {"targets": ["Linear"], "weights": weights}});
                json!({"quant_method": method, "format": form, "config_groups": groups,
                    "ignore": ["lm_head"], "sparsity_config": {}, "transform_config": {},
                    "kv_cache_scheme": null})
            }
            "modelopt" => json!({"quant_method": method, "quant_algo": form}),
            _ => json!({"quant_method": method, "weight_block_size": [128, 128], "fmt": "e4m3"}),
        }
    }

    /// The value of a code.
    fn value(&self, code: u8) -> f64 {
        let [sign, exponent, mantissa] = [code >> 7, code >> 3 & 15, code & 7].map(i32::from);
        let sign = if sign == 0 { 1.0 } else { -1.0 };
        match (self.dtype, exponent) {
            ("I8", _) => f64::from(code.cast_signed()),
            (_, 0) => sign * f64::from(mantissa) * 2f64.powi(-9),
            _ => sign * f64::from(8 + mantissa) * 2f64.powi(exponent - 10),
        }
    }

    /// Matrices of layers as this form stores them, with made-up values, and as their products; other tensors as they are.
    fn stored(&self, tensors: &Tensors) -> [Tensors; 2] {
        let (mut given, mut wanted, mut state) = (tensors.clone(), tensors.clone(), 7u64);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        };
        let is_matrix = |(name, tensor): &(&String, &Stored)| {
            name.contains("proj") && !name.contains("vision") && tensor.shape.len() > 1
        };
        for (name, Stored { shape, .. }) in tensors.iter().filter(is_matrix) {
            let (of_scales, [tall, wide]) = (self.shape)(shape);
            let n_scales = of_scales.iter().product();
            let exact = |x: f32| {
                if self.dtype_of_scales == "F32" { x } else { half::bf16::from_f32(x).to_f32() }
            };
            let scales: Vec<f32> =
                (0..n_scales).map(|_| exact((next() % 1000 + 1) as f32 / 3e6)).collect();
            // NaN is no weight.
            let n = shape.iter().product();
            let codes =
                (0..n).map(|_| next() as u8).map(|code| if code & 0x7f == 0x7f { 0 } else { code });
            let codes: Vec<u8> = codes.collect();
            let [.., height, cols] = shape[..] else { panic!("{shape:?}") };
            let (a, b) = (height.div_ceil(tall), cols.div_ceil(wide));
            let product = |(at, code): (usize, &u8)| {
                let (row, col) = (at / cols, at % cols);
                let scale = (row / height * a + row % height / tall) * b + col / wide;
                store("F32", (self.value(*code) as f32) * scales[scale])
            };
            let bytes = codes.iter().enumerate().flat_map(product).collect();
            wanted.insert(name.clone(), Stored { dtype: "F32", shape: shape.clone(), bytes });
            let bytes = scales.iter().flat_map(|x| store(self.dtype_of_scales, *x)).collect();
            let own = Stored { dtype: self.dtype_of_scales, shape: of_scales, bytes };
            given.insert([name, self.scales].concat(), own);
            given.insert(
                name.clone(),
                Stored { dtype: self.dtype, shape: shape.clone(), bytes: codes },
            );
            if let Some(module) = name.strip_suffix("weight") {
                let own = Stored { dtype: "F32", shape: vec![1], bytes: store("F32", 0.5) };
                given.insert(format!("{module}input_scale"), own);
            }
        }
        [given, wanted]
    }
}

/// The model files of two checkpoints with one configuration but for `quantization`.
fn files(
    config: &Value,
    quantization: Value,
    tensors: [&Tensors; 2],
    version: i32,
) -> [Vec<u8>; 2] {
    let mut of_given = config.clone();
    of_given["quantization_config"] = quantization;
    let of = |config: &Value, tensors: &Tensors| {
        let folder = Folder::new();
        folder.write("config.json", config.to_string());
        folder.write("model.safetensors", safetensors(tensors.iter()));
        export(&folder, &options(version)).unwrap()
    };
    [of(&of_given, tensors[0]), of(config, tensors[1])]
}

#[test]
fn weights_of_eight_bits_are_multiplied_by_their_scales() {
    // Blocks at the edges are narrower and lower.
    let dims = Dims { dim: 192, ffn_dim: 320, n_heads: 6, n_kv_heads: 2, ..SMALL };
    let checkpoint = Checkpoint::hugging_face("BF16", dims);
    let config = &checkpoint.files["config.json"];
    for form in FORMS {
        let [given, wanted] = form.stored(&checkpoint.tensors);
        for version in [1, 2] {
            let [found, products] = files(config, form.config(), [&given, &wanted], version);
            assert!(found == products, "{:?}, version {version}", form.method);
        }
    }
}

/// Experts one by one, experts in one tensor, matrices that stand for several, language models within others.
#[test]
fn families_with_joined_tensors_have_their_scales() {
    for family in ["qwen3moe", "qwen35moe", "phi3", "ministral3"] {
        let config = families::config(family);
        let stored = |(name, (shape, bytes)): (String, (Vec<usize>, Vec<u8>))| {
            (name, Stored { dtype: "BF16", shape, bytes })
        };
        let tensors: Tensors = families::tensors(family).into_iter().map(stored).collect();
        for form in [FORMS[0], FORMS[1], FORMS[3]] {
            let [given, wanted] = form.stored(&tensors);
            assert!(given.len() > tensors.len());
            let [found, products] = files(&config, form.config(), [&given, &wanted], 1);
            assert!(found == products, "{family}, {:?}", form.method);
        }
    }
}

/// Stores `weight` in int8, and takes its `scales` away.
fn as_int8(all: &mut Tensors, weight: &str, scales: &str) {
    all.remove(scales);
    all.get_mut(weight).unwrap().dtype = "I8";
}

#[test]
fn scales_that_do_not_fit_and_other_forms_are_refused() {
    let checkpoint = Checkpoint::hugging_face("BF16", SMALL);
    let form = FORMS[1];
    let [given, _] = form.stored(&checkpoint.tensors);
    let (weight, scales) =
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight_scale_inv");
    let refused = |quantization: Value, change: Change<'_>, wanted: &str| {
        let mut tensors = given.clone();
        change(&mut tensors);
        let mut changed = checkpoint.clone();
        changed.tensors = tensors;
        changed.set("config.json", "quantization_config", quantization);
        let folder = Folder::new();
        changed.write(&folder);
        let error = export(&folder, &options(2)).err();
        let error = error.unwrap_or_else(|| panic!("{wanted}: it is not refused"));
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    };
    let exponent = Stored { dtype: "U8", shape: vec![1], bytes: vec![127] };
    let nothing: Change<'_> = &|_| {};
    let shaped = |shape: Vec<usize>| {
        move |tensors: &mut Tensors| {
            let n = shape.iter().product::<usize>();
            let own = Stored { dtype: "F32", shape: shape.clone(), bytes: vec![0; 4 * n] };
            tensors.insert(scales.to_owned(), own);
        }
    };
    let int8 = || json!({"quant_method": "compressed-tensors", "format": "int-quantized"});
    let other = |field: &str, value: Value| {
        let mut config = FORMS[4].config();
        config[field] = value;
        config
    };
    let weights = |weights: Value| other("config_groups", json!({"group_0": {"weights": weights}}));
    let cases: [(Value, Change<'_>, &str); 19] = [
        (int8(), &|all| as_int8(all, weight, scales), "there is no"),
        (
            form.config(),
            &|all| drop(all.insert(format!("{weight}_scale"), all[scales].clone())),
            "scales under two names",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [130, 130]}),
            nothing,
            "weight_block_size [130.0, 130.0]",
        ),
        (json!({"quant_method": "fp8", "weight_block_size": "x"}), nothing, "a list of numbers"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), nothing, "fmt e5m2"),
        (other("transform_config", json!({"config_groups": {}})), nothing, "transform_config"),
        (other("sparsity_config", json!({"format": "sparse-24"})), nothing, "sparse-24"),
        (weights(json!({"num_bits": 4})), nothing, "num_bits 4 of weights"),
        (weights(json!({"group_size": 64})), nothing, "group_size 64 of weights"),
        (
            form.config(),
            &|all| all.get_mut(scales).unwrap().clone_from(&exponent),
            "has scales of type U8",
        ),
        (form.config(), &|all| drop(all.remove(scales)), "there is no"),
        (form.config(), &shaped(vec![2, 3]), "does not fit weights of shape"),
        (form.config(), &shaped(vec![0]), "does not fit weights of shape"),
        (form.config(), &shaped(vec![128, 64, 2]), "does not fit weights of shape"),
        (form.config(), &|all| all.get_mut(weight).unwrap().bytes[5] = 0x7f, "NaN or an infinity"),
        (
            form.config(),
            &|all| drop(all.insert(format!("{weight}_zero_point"), all[scales].clone())),
            "zero points",
        ),
        (json!({"quant_method": "gptq", "bits": 4}), nothing, "quantised already (gptq)"),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            nothing,
            "(compressed-tensors, pack-quantized)",
        ),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), nothing, "(modelopt, NVFP4)"),
    ];
    for (quantization, change, wanted) in cases {
        let told = refused(quantization, change, wanted);
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
}

/// Also without a configuration that says so, int8 weights are incomplete if only others have scales.
#[test]
fn experts_that_lack_scales_which_others_have_are_refused() {
    let config = families::config("qwen3moe");
    let stored = |(name, (shape, bytes)): (String, (Vec<usize>, Vec<u8>))| {
        (name, Stored { dtype: "BF16", shape, bytes })
    };
    let tensors: Tensors = families::tensors("qwen3moe").into_iter().map(stored).collect();
    let [mut given, _] = FORMS[4].stored(&tensors);
    let is_lacking = |name: &String| name.ends_with("experts.1.up_proj.weight_scale");
    let lacking = given.keys().find(|name| is_lacking(name)).unwrap().clone();
    given.remove(&lacking);
    let folder = Folder::new();
    folder.write("config.json", config.to_string());
    folder.write("model.safetensors", safetensors(given.iter()));
    let error = export(&folder, &options(1)).err();
    let error = error.unwrap_or_else(|| panic!("{lacking}: it is not refused"));
    let told =
        std::error::Error::source(&error).map_or(error.to_string(), |e| format!("{error}: {e}"));
    assert!(told.contains("there is no"), "{told}");
}
