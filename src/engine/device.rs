//! Devices beside the CPUs: which there are, and the choice of one.

use super::error::EngineError;
use super::options::{DeviceChoice, Options};
use crate::model::Transformer;

/// Has the device that `options` choose compute the last layers of `transformer`.
///
/// # Errors
/// If a GPU was asked for and cannot be used.
pub(super) fn give_layers(
    transformer: &mut Transformer,
    options: &Options,
) -> Result<(), EngineError> {
    let name = match &options.device.choice {
        DeviceChoice::Cpu => return Ok(()),
        DeviceChoice::Auto => None,
        DeviceChoice::Gpu { name } => name.clone(),
    };
    match (give(transformer, name, options.device.memory), &options.device.choice) {
        (Err(why), DeviceChoice::Auto) => {
            log::info!("layers stay on the CPU: {why}");
            Ok(())
        }
        (result, _) => result.map_err(EngineError::Device),
    }
}

#[cfg(feature = "gpu")]
fn give(
    transformer: &mut Transformer,
    name: Option<String>,
    memory: Option<u64>,
) -> Result<(), String> {
    use crate::gpu::{Gpu, GpuOptions};
    use crate::model::Device;

    let options = GpuOptions { name, memory };
    let opened = transformer.use_device(Box::new(move |model, plan, pool| {
        let gpu = Gpu::open(model, plan, &options, pool).map_err(|error| error.to_string())?;
        Ok(Box::new(gpu) as Box<dyn Device>)
    }));
    opened.map_err(|error| error.to_string())
}

#[cfg(not(feature = "gpu"))]
fn give(_: &mut Transformer, _: Option<String>, _: Option<u64>) -> Result<(), String> {
    Err("this program computes on CPUs alone; one with the feature \"gpu\" uses GPUs".to_owned())
}

/// A device beside the CPUs, and whether it gives their bits.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// The devices that Vulkan finds, each after a self-test.
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
        exactness: match result {
            Ok(Fusing::Device) => Ok("by its own fused multiply-add"),
            Ok(Fusing::Sums) => Ok("by sums of known error"),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::engine::{Engine, Options};
    use crate::kernels::Kernels;
    use crate::model::{
        Device, ForwardError, KvPlace, Model, OpenDevice, PageChange, Plan, Precision, Share, Span,
        Stage, StartError, Transformer,
    };
    use crate::pool::Pool;

    /// A device that is a second transformer. It fails when as many passes are done.
    struct Second {
        transformer: Transformer,
        passes_left: usize,
    }

    impl Second {
        /// The layers of a share from `first` on.
        fn open(first: usize, passes_left: usize) -> OpenDevice {
            Box::new(move |model, plan, _| {
                let layers = model.share().layers.start.max(first)..model.share().layers.end;
                let share = Share { layers, has_ends: false };
                let model = Arc::new(model.with_share(share).map_err(|e| e.to_string())?);
                let pool = Pool::new(&[]).unwrap();
                let transformer = Transformer::new(model, Kernels::best(), pool, *plan).unwrap();
                Ok(Box::new(Second { transformer, passes_left }))
            })
        }
    }

    impl Device for Second {
        fn name(&self) -> &str {
            "second"
        }

        fn model(&self) -> &Model {
            self.transformer.model()
        }

        fn set_plan(&mut self, plan: &Plan) -> Result<(), StartError> {
            self.transformer.set_plan(*plan)
        }

        fn run_layers(
            &mut self,
            spans: &[Span],
            x: &mut [f32],
            _: Option<fn() -> bool>,
        ) -> Result<(), ForwardError> {
            let Some(left) = self.passes_left.checked_sub(1) else {
                return Err(ForwardError::Device("the device is lost".to_owned()));
            };
            self.passes_left = left;
            let dim = self.model().header().dim;
            self.transformer.put_rows(0, Precision::F32, bytemuck::cast_slice(x));
            self.transformer.run_layers(spans)?;
            for (row, x) in x.chunks_exact_mut(dim).enumerate() {
                self.transformer.get_row(row, Precision::F32, bytemuck::cast_slice_mut(x));
            }
            Ok(())
        }

        fn classify(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), ForwardError> {
            unreachable!("its share has no ends")
        }

        fn change_page(&mut self, change: &PageChange) {
            assert!(self.transformer.change_page(change));
        }

        fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool {
            self.transformer.read_kv(part, out)
        }

        fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool {
            self.transformer.write_kv(part, first, bytes)
        }
    }

    const IDS: [u32; 40] = {
        let mut ids = [0; 40];
        let mut i = 0;
        while i < 40 {
            ids[i] = (i * i + 3) as u32;
            i += 1;
        }
        ids
    };

    fn engine() -> Engine {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo.bin");
        let options =
            Options { ctx_len: Some(64), batch: Some(8), threads: Some(1), ..Options::default() };
        Engine::new(Arc::new(Model::open(path.as_ref()).unwrap()), &options).unwrap()
    }

    /// Bits of the logits behind each of several pushes.
    fn logits(engine: &mut Engine) -> Vec<u32> {
        let mut stream = engine.stream().unwrap();
        let pushes = IDS.chunks(9).map(|ids| {
            let logits = engine.push(&mut stream, ids).unwrap();
            logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        });
        pushes.collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_device_may_have_any_of_the_last_layers() {
        let wanted = logits(&mut engine());
        for first in 0..engine().header().n_layers {
            let mut engine = engine();
            engine.stage.transformer.use_device(Second::open(first, usize::MAX)).unwrap();
            let layers = engine.header().n_layers - first;
            assert_eq!(engine.device(), Some(("second", layers)));
            assert!(logits(&mut engine) == wanted, "from layer {first} on");
        }
    }

    #[test]
    fn answers_go_on_without_a_device_that_is_lost() {
        let wanted = logits(&mut engine());
        for passes in 0..9 {
            let mut engine = engine();
            engine.stage.transformer.use_device(Second::open(2, passes)).unwrap();
            assert!(logits(&mut engine) == wanted, "lost after {passes} passes");
            assert_eq!(engine.device(), None);
        }
    }

    /// Boards of rings have a share for a while, then all layers again.
    #[test]
    fn a_device_follows_when_layers_move() {
        let wanted = logits(&mut engine());
        let mut engine = engine();
        let (n_layers, plan) = (engine.header().n_layers, *engine.plan());
        engine.stage.transformer.use_device(Second::open(2, usize::MAX)).unwrap();
        let whole = engine.stage.about().share.clone();
        for (layers, on_device) in [(1..4, 2), (3..4, 1), (0..2, 0)] {
            let share = Share { layers, has_ends: true };
            engine.stage.set_share(share.clone(), plan).unwrap();
            assert_eq!(engine.device().map_or(0, |(_, layers)| layers), on_device);
            assert_eq!(engine.stage.about().share, &share);
        }
        // There was no layer for the device.
        engine.stage.set_share(whole.clone(), plan).unwrap();
        engine.stage.transformer.use_device(Second::open(2, usize::MAX)).unwrap();
        engine.stage.set_share(Share { layers: 1..4, has_ends: true }, plan).unwrap();
        engine.stage.set_share(whole, plan).unwrap();
        assert_eq!(engine.device(), Some(("second", n_layers - 2)));
        assert!(logits(&mut engine) == wanted);
    }

    /// A ring may ask a board that has begun for another format of keys and values.
    #[cfg(feature = "gpu")]
    #[test]
    fn a_plan_may_change_on_a_gpu() {
        use crate::model::KvKind;

        let mut plain = engine();
        let plan = Plan { kv: KvKind::F32, ..*plain.plan() };
        plain.stage.set_plan(plan).unwrap();
        let mut engine = engine();
        let name = Some("llvmpipe".to_owned());
        if let Err(why) = super::give(&mut engine.stage.transformer, name, None) {
            let may_lack = cfg!(target_env = "musl") || std::env::var_os("CI").is_none();
            assert!(may_lack, "{why}");
            return;
        }
        engine.stage.set_plan(plan).unwrap();
        assert!(engine.device().is_some());
        assert!(logits(&mut engine) == logits(&mut plain));
    }
}
