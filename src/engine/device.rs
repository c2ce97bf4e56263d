//! Devices beside the CPUs: which there are, and the choice of one.

use super::bandwidth;
use super::error::EngineError;
use super::options::{DeviceChoice, Options};
use crate::kernels::Kernels;
use crate::model::{DeviceSpeeds, Transformer};
use crate::pool::Pool;

/// Has the device that `options` choose compute the last layers of `transformer`.
///
/// # Errors
/// If a GPU was asked for and cannot be used.
pub(super) fn give_layers(
    transformer: &mut Transformer,
    options: &Options,
) -> Result<(), EngineError> {
    let memory = options.device.memory;
    match &options.device.choice {
        DeviceChoice::Cpu => Ok(()),
        DeviceChoice::Auto => {
            if let Err(why) = give(transformer, None, memory, Some(read_by_cpus)) {
                log::info!("layers stay on the CPU: {why}");
            }
            Ok(())
        }
        DeviceChoice::Gpu { name } => {
            give(transformer, name.clone(), memory, None).map_err(EngineError::Device)
        }
    }
}

/// Bytes a second that the threads of `pool` read: the CPUs multiply weights no faster. 0 if there is no memory to read.
fn read_by_cpus(pool: &Pool) -> f64 {
    bandwidth::best(&Kernels::best(), pool, 0.0).unwrap_or(0.0)
}

/// Gives layers to the device whose name contains `name`. With `outpace`, only to a device that multiplies more bytes of
/// weights a second.
#[cfg(feature = "gpu")]
fn give(
    transformer: &mut Transformer,
    name: Option<String>,
    memory: Option<u64>,
    outpace: Option<fn(&Pool) -> f64>,
) -> Result<(), String> {
    use crate::gpu::{Gpu, GpuOptions};
    use crate::model::Device;

    let options = GpuOptions { name, memory, outpace };
    let opened = transformer.use_device(Box::new(move |model, plan, pool| {
        let gpu = Gpu::open(model, plan, &options, pool).map_err(|error| error.to_string())?;
        Ok(Box::new(gpu) as Box<dyn Device>)
    }));
    opened.map_err(|error| error.to_string())
}

#[cfg(not(feature = "gpu"))]
fn give(
    _: &mut Transformer,
    _: Option<String>,
    _: Option<u64>,
    _: Option<fn(&Pool) -> f64>,
) -> Result<(), String> {
    Err("this program computes on CPUs alone; one with the feature \"gpu\" uses GPUs".to_owned())
}

/// A device beside the CPUs, and whether it gives their bits.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceLine {
    /// The device's own name.
    pub name: String,
    /// Name and version of its driver.
    pub driver: String,
    /// Bytes of its own memory.
    pub memory: u64,
    /// Whether it is a program on the CPU.
    pub is_software: bool,
    /// How it comes to the CPUs' bits, or why it cannot be used.
    pub exactness: Result<&'static str, String>,
    /// How fast it is; `None` if it cannot be used.
    pub speeds: Option<DeviceSpeeds>,
}

/// The devices that Vulkan finds, each after a self-test, and measured if it passed.
///
/// # Errors
/// Why none is found.
#[cfg(feature = "gpu")]
pub fn devices() -> Result<Vec<DeviceLine>, String> {
    use crate::gpu::{Examined, Fusing, examine};

    let examined = examine().map_err(|error| error.to_string())?;
    let line = |Examined { info, result }: Examined| DeviceLine {
        name: info.name,
        driver: info.driver,
        memory: info.memory,
        is_software: info.is_software,
        speeds: result.as_ref().ok().map(|(_, speeds)| *speeds),
        exactness: match result {
            Ok((Fusing::Device, _)) => Ok("by its own fused multiply-add"),
            Ok((Fusing::Sums, _)) => Ok("by sums of known error"),
            Err(error) => Err(error.to_string()),
        },
    };
    Ok(examined.into_iter().map(line).collect())
}

/// No devices: this program has no feature `gpu`.
///
/// # Errors
/// Always.
#[cfg(not(feature = "gpu"))]
pub fn devices() -> Result<Vec<DeviceLine>, String> {
    Err("this program computes on CPUs alone".to_owned())
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use std::sync::Arc;

    use crate::engine::{Engine, Options};
    use crate::format::model::{
        DeltaRule, Features, Header, LayerSet, Mixer, RecurrentLayers, Weights,
    };
    use crate::model::{KvKind, Model, PiecePlace, Plan, Stage};
    use crate::pool::Pool;

    fn demo() -> Arc<Model> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo.bin");
        Arc::new(Model::open(path.as_ref()).unwrap())
    }

    /// A model like the demo whose first layers have states.
    fn with_states() -> Arc<Model> {
        let mixer = Mixer::DeltaRule(DeltaRule {
            taps: 4,
            key_heads: 2,
            value_heads: 4,
            key_dim: 32,
            value_dim: 16,
            is_tiled: false,
        });
        let recurrent = Some(RecurrentLayers { layers: LayerSet::new(0..2).unwrap(), mixer });
        let features = Features { recurrent, ..Features::default() };
        let weights = Weights::Q8 { group: 32 };
        let header = Header { n_layers: 3, features, weights, ..demo().header().clone() };
        Arc::new(Model::synthetic(&header).unwrap())
    }

    fn engine(model: &Arc<Model>) -> Engine {
        let options =
            Options { ctx_len: Some(64), batch: Some(8), threads: Some(1), ..Options::default() };
        Engine::new(Arc::clone(model), &options).unwrap()
    }

    /// Bits of the logits behind each of several pushes.
    fn logits(engine: &mut Engine) -> Vec<u32> {
        let mut stream = engine.stream().unwrap();
        let ids: Vec<u32> = (0..40).map(|i| i * i + 3).collect();
        let pushes = ids.chunks(9).map(|ids| {
            let logits = engine.push(&mut stream, ids).unwrap();
            logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        });
        pushes.collect::<Vec<_>>().concat()
    }

    /// Whether the first layer has a state.
    fn has_state(engine: &mut Engine) -> bool {
        let mut bytes = vec![0; engine.stage.state_piece_bytes()];
        let mut pieces = 0..engine.stage.n_state_pieces();
        pieces
            .any(|piece| engine.stage.read_state_piece(PiecePlace { layer: 0, piece }, &mut bytes))
    }

    /// A ring may ask a board that has begun for another format of keys and values, and for other streams.
    #[test]
    fn a_plan_may_change_on_a_gpu() {
        for model in [demo(), with_states()] {
            let mut plain = engine(&model);
            let plan = Plan { kv: KvKind::F32, n_streams: 3, ..*plain.plan() };
            plain.stage.set_plan(plan).unwrap();
            let mut engine = engine(&model);
            let name = Some("llvmpipe".to_owned());
            if let Err(why) = super::give(&mut engine.stage.transformer, name, None, None) {
                let may_lack = cfg!(target_env = "musl") || std::env::var_os("CI").is_none();
                assert!(may_lack, "{why}");
                return;
            }
            logits(&mut engine);
            assert_eq!(has_state(&mut engine), model.header().has_state());
            engine.stage.set_plan(plan).unwrap();
            assert!(engine.device().is_some() && !has_state(&mut engine));
            assert!(logits(&mut engine) == logits(&mut plain));
        }
    }

    #[test]
    fn layers_stay_on_the_cpu_where_a_device_is_slower() {
        let mut engine = engine(&demo());
        let mut give = |outpace: fn(&Pool) -> f64| {
            let name = Some("llvmpipe".to_owned());
            super::give(&mut engine.stage.transformer, name, None, Some(outpace))
        };
        let why = give(|_| f64::MAX).unwrap_err();
        if !why.contains("llvmpipe (") {
            let may_lack = cfg!(target_env = "musl") || std::env::var_os("CI").is_none();
            assert!(may_lack, "{why}");
            return;
        }
        assert!(why.contains("multiplies weights at"), "{why}");
        give(|_| 1.0).unwrap();
        assert!(engine.device().is_some());
        let pool = Pool::new(&[]).unwrap();
        assert!(super::read_by_cpus(&pool) > 1e6);
    }
}
