//! The shaders, compiled by the driver.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ash::vk;

use super::device::Handle;
use super::error::GpuError;
use crate::model::KvKind;

/// Bytes of push constants of every pipeline.
pub(super) const PUSH_BYTES: u32 = 128;

/// A shader, with the constants that it is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shader {
    /// Single operations.
    Elements,
    /// RMSNorm of rows.
    Norm,
    /// Rows to int8.
    Quantize,
    /// A product by codes.
    Product {
        /// How groups add up, see the shader.
        form: u32,
        /// Whether codes have 4 bits.
        is_four_bits: bool,
        /// Whether rows have matrices of experts.
        by_expert: bool,
    },
    /// A product by f32.
    ProductF32 {
        /// Whether rows have matrices of experts.
        by_expert: bool,
    },
    /// Biases, norms and rotation of heads.
    Heads,
    /// Keys and values to their pages.
    Store {
        /// How they are kept.
        kv: KvKind,
    },
    /// Attention.
    Attend {
        /// How keys and values are kept.
        kv: KvKind,
    },
    /// A part of attention of few rows to many positions.
    AttendPart {
        /// How keys and values are kept.
        kv: KvKind,
        /// Number of the part, see the shader.
        part: u32,
    },
    /// Activations of gate and up.
    Activate(u32),
    /// Sums of rows.
    Add {
        /// Whether the second rows are those of experts.
        by_expert: bool,
    },
    /// The experts of rows.
    Choose,
    /// Weighted sums of experts' outputs.
    Mix,
    /// Rows times gates.
    Gate(GateForm),
    /// Values that steer updates of states.
    Controls,
    /// Convolutions along rows.
    Convolve,
    /// Histories and journals of recurrent layers.
    Keep,
    /// Norms of the delta rule's queries and keys.
    Keys,
    /// Updates of states by the delta rule.
    Delta,
    /// Updates of states of state spaces.
    Scan,
    /// Reads of memory, to measure them.
    Read,
}

/// Forms of gates, numbered as in `shaders/gate.comp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum GateForm {
    /// A product.
    Plain = 0,
    /// By the sigmoid of the gate.
    Sigmoid = 1,
    /// SwiGLU.
    Silu = 2,
    /// By the sigmoid of the one gate of a row.
    OfRow = 3,
}

/// The pipelines of the devices of this process.
static MADE: Mutex<Vec<Weak<Made>>> = Mutex::new(Vec::new());

/// Pipelines that were made for a device. Drivers may take seconds to make one, so all engines share them.
struct Made {
    handle: Arc<Handle>,
    layout: vk::PipelineLayout,
    all: Mutex<HashMap<(Shader, bool), vk::Pipeline>>,
}

/// Pipelines of an engine, made when they are first asked for.
pub(super) struct Pipelines {
    made: Arc<Made>,
    /// Those that this engine uses.
    all: HashMap<Shader, vk::Pipeline>,
    /// Whether the device's `fma` rounds once.
    pub(super) is_fused: bool,
}

impl Made {
    /// The pipelines of a device.
    fn of(handle: &Arc<Handle>) -> Result<Arc<Made>, GpuError> {
        let mut all = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|made| made.strong_count() > 0);
        let mut known = all.iter().filter_map(Weak::upgrade);
        if let Some(made) = known.find(|made| Arc::ptr_eq(&made.handle, handle)) {
            return Ok(made);
        }
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(PUSH_BYTES)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        // SAFETY: the device is alive, and `info` lives during the call.
        let layout = unsafe { handle.device.create_pipeline_layout(&info, None) };
        let layout = layout.map_err(GpuError::of("vkCreatePipelineLayout"))?;
        let made = Made { handle: Arc::clone(handle), layout, all: Mutex::default() };
        let made = Arc::new(made);
        all.push(Arc::downgrade(&made));
        Ok(made)
    }
}

impl Pipelines {
    pub(super) fn new(handle: &Arc<Handle>, is_fused: bool) -> Result<Pipelines, GpuError> {
        Ok(Pipelines { made: Made::of(handle)?, all: HashMap::new(), is_fused })
    }

    pub(super) fn layout(&self) -> vk::PipelineLayout {
        self.made.layout
    }

    /// The pipeline of `shader`. Drivers may take seconds to make one.
    pub(super) fn prepare(&mut self, shader: Shader) -> Result<vk::Pipeline, GpuError> {
        if let Some(pipeline) = self.all.get(&shader) {
            return Ok(*pipeline);
        }
        let pipeline = self.made.pipeline(shader, self.is_fused)?;
        self.all.insert(shader, pipeline);
        Ok(pipeline)
    }

    /// A pipeline that [`Pipelines::prepare`] has made.
    ///
    /// # Panics
    /// If it was not prepared.
    pub(super) fn get(&self, shader: Shader) -> vk::Pipeline {
        self.all[&shader]
    }
}

impl Made {
    /// The pipeline of `shader`, made if no engine has asked for it yet.
    fn pipeline(&self, shader: Shader, is_fused: bool) -> Result<vk::Pipeline, GpuError> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = all.get(&(shader, is_fused)) {
            return Ok(*pipeline);
        }
        let pipeline = self.make(shader, is_fused)?;
        all.insert((shader, is_fused), pipeline);
        Ok(pipeline)
    }

    fn make(&self, shader: Shader, is_fused: bool) -> Result<vk::Pipeline, GpuError> {
        let device = &self.handle.device;
        let code: Vec<u32> = bytemuck::pod_collect_to_vec(shader.code(self.handle.has_dot));
        let info = vk::ShaderModuleCreateInfo::default().code(&code);
        // SAFETY: the code is SPIR-V that this program holds, and `info` lives during the call.
        let module = unsafe { device.create_shader_module(&info, None) };
        let module = module.map_err(GpuError::of("vkCreateShaderModule"))?;
        let constants = shader.constants(is_fused);
        let entry = |(index, _): (usize, &u32)| vk::SpecializationMapEntry {
            constant_id: index as u32,
            offset: 4 * index as u32,
            size: 4,
        };
        let entries: Vec<_> = constants.iter().enumerate().map(entry).collect();
        let values = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(bytemuck::cast_slice(&constants));
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&values);
        let infos = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout)];
        // SAFETY: `infos` and what it points to live during the call.
        let made = unsafe {
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &infos, None);
            device.destroy_shader_module(module, None);
            made
        };
        let made = made.map_err(|(_, result)| result);
        Ok(made.map_err(GpuError::of("vkCreateComputePipelines"))?[0])
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let all = self.all.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no engine is left that uses them, and each submission was waited for.
        unsafe {
            for pipeline in all.values() {
                self.handle.device.destroy_pipeline(*pipeline, None);
            }
            self.handle.device.destroy_pipeline_layout(self.layout, None);
        }
    }
}

impl Shader {
    fn code(self, has_dot: bool) -> &'static [u8] {
        match self {
            Shader::Elements => include_bytes!("shaders/elements.spv"),
            Shader::Norm => include_bytes!("shaders/norm.spv"),
            Shader::Quantize => include_bytes!("shaders/quantize.spv"),
            Shader::Product { .. } if has_dot => include_bytes!("shaders/product_dot.spv"),
            Shader::Product { .. } => include_bytes!("shaders/product.spv"),
            Shader::ProductF32 { .. } => include_bytes!("shaders/product_f32.spv"),
            Shader::Heads => include_bytes!("shaders/heads.spv"),
            Shader::Store { .. } => include_bytes!("shaders/store.spv"),
            Shader::Attend { .. } => include_bytes!("shaders/attend.spv"),
            Shader::AttendPart { .. } => include_bytes!("shaders/attend_parts.spv"),
            Shader::Activate(_) => include_bytes!("shaders/activate.spv"),
            Shader::Add { .. } => include_bytes!("shaders/add.spv"),
            Shader::Choose => include_bytes!("shaders/choose.spv"),
            Shader::Mix => include_bytes!("shaders/mix.spv"),
            Shader::Gate(_) => include_bytes!("shaders/gate.spv"),
            Shader::Controls => include_bytes!("shaders/controls.spv"),
            Shader::Convolve => include_bytes!("shaders/convolve.spv"),
            Shader::Keep => include_bytes!("shaders/keep.spv"),
            Shader::Keys => include_bytes!("shaders/keys.spv"),
            Shader::Delta => include_bytes!("shaders/delta.spv"),
            Shader::Scan => include_bytes!("shaders/scan.spv"),
            Shader::Read => include_bytes!("shaders/read.spv"),
        }
    }

    /// Specialisation constants, from number 0 on.
    fn constants(self, is_fused: bool) -> Vec<u32> {
        let own = match self {
            Shader::Product { form, is_four_bits, by_expert } => {
                vec![form, u32::from(is_four_bits), u32::from(by_expert)]
            }
            Shader::ProductF32 { by_expert } | Shader::Add { by_expert } => {
                vec![u32::from(by_expert)]
            }
            Shader::Store { kv } | Shader::Attend { kv } => vec![number_of(kv)],
            Shader::AttendPart { kv, part } => vec![number_of(kv), part],
            Shader::Activate(activation) => vec![activation],
            Shader::Gate(form) => vec![form as u32],
            _ => Vec::new(),
        };
        [vec![u32::from(is_fused)], own].concat()
    }
}

/// Number of a way to keep keys and values in `shaders/pages.glsl`.
fn number_of(kv: KvKind) -> u32 {
    match kv {
        KvKind::F32 => 0,
        KvKind::F16 => 1,
        KvKind::Int8 => 2,
    }
}
