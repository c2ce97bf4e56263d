use super::*;
use crate::export::checkpoint::Checkpoint;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)
}

#[test]
fn blocks_of_every_type_become_the_bits_that_ggml_makes_of_them() {
    let checkpoint = Checkpoint::gguf(&golden("blocks.gguf")).unwrap();
    let kinds: Vec<&str> = checkpoint.names().filter(|name| !name.ends_with(".f32")).collect();
    assert_eq!(kinds.len(), 15);
    for kind in kinds {
        let (source, wanted) =
            (checkpoint.tensor(kind).unwrap(), checkpoint.tensor(&format!("{kind}.f32")).unwrap());
        assert_eq!(source.shape, wanted.shape);
        let len = source.shape.iter().product();
        let (mut found, mut reference) = (vec![0.0; len], vec![0.0; len]);
        let cols = source.shape[1];
        for (row, found) in found.chunks_mut(cols).enumerate() {
            source.widen_row(row, found);
        }
        for (row, reference) in reference.chunks_mut(cols).enumerate() {
            wanted.widen_row(row, reference);
        }
        assert!(len >= 16 && reference.iter().any(|w| *w != 0.0));
        for (index, (found, wanted)) in found.iter().zip(&reference).enumerate() {
            // Random bf16 may be NaN, which has many bit patterns.
            let is_same =
                found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
            assert!(is_same, "{kind} {index}: {found:?}, not {wanted:?}");
        }
    }
}

#[test]
fn codes_and_scales_of_8_bits_are_taken_apart() {
    let checkpoint = Checkpoint::gguf(&golden("blocks.gguf")).unwrap();
    let source = checkpoint.tensor("Q8_0").unwrap();
    let cols = source.shape[1];
    assert!(source.is_int8() && source.shape[0] == 2);
    for row in 0..2 {
        let (mut codes, mut scales) = (vec![0; cols], vec![0.0; cols / 32]);
        source.split_row(row, &mut codes, &mut scales);
        let mut wide = vec![0.0; cols];
        source.widen_row(row, &mut wide);
        for (index, wide) in wide.iter().enumerate() {
            assert_eq!(f32::from(codes[index] as i8) * scales[index / 32], *wide);
        }
    }
}
