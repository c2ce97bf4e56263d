//! `leap bench`: how fast a model runs here, beside what the machine could do.

mod drafts;
pub(super) mod energy;
mod link;
pub(super) mod machine;
pub(super) mod made_up;
mod model;
mod start;
mod sweep;
mod table;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::power::{self, StatedWatts};
use super::weights::{self, Words};
use super::{Failure, key, model_files, note, options};
use crate::engine::{
    Cache, DeviceChoice, DeviceOptions, DeviceSpeeds, Engine, Huge, Options, WeightsPlace, devices,
};
use crate::format::model::{Ends, Header};
use crate::kernels::Isa;
use crate::model::{KvKind, Model, Shape};
use crate::sys::cpu;
use crate::sys::huge::Pages;
use crate::sys::power::{Meter, locked};
use crate::transport::place::HostPort;
use machine::MeasuredMachine;
use model::What;
use sweep::Sweep;
use table::BenchTable;

/// Measures this machine, and how near to its limits a model runs.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "bench")]
pub(super) struct Bench {
    /// model file or checkpoint; without one and without --shape only the machine is measured
    #[argh(positional)]
    model: Option<PathBuf>,
    /// shape of a made-up model, no file needed: tinyllama, llama2-7b, llama3-1b, llama3-3b, llama3-8b,
    /// qwen3-0.6b, qwen3-4b, qwen3-30b-a3b, gemma3-1b, qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, lfm2-1.2b, gemma4-e2b
    #[argh(option, from_str_fn(options::shape))]
    shape: Option<Shape>,
    /// version of the made-up model: 1 (f32), 2 (int8, default), 3 (4-bit) or
    /// 4 (4.5-bit)
    #[argh(option, default = "2")]
    version: u32,
    /// bits of the embedding and classifier with --version 4: 8 (default) or 6
    #[argh(option, arg_name = "bits", from_str_fn(options::embedding_bits))]
    embedding_bits: Option<Ends>,
    /// layers of the made-up model, fewer than the shape has: where memory is short of all
    #[argh(option, from_str_fn(options::count))]
    layers: Option<usize>,
    /// contexts at which decoding is measured (0,512,2048)
    #[argh(option, from_str_fn(numbers), default = "Numbers(vec![0, 512, 2048])")]
    depth: Numbers,
    /// lengths of prompts (16,128,512); for those of 2 to 16 tokens, times the longer of one token's pass and as
    /// many tokens of a prompt of 128
    #[argh(option, from_str_fn(counts), default = "Numbers(vec![16, 128, 512])")]
    prompt: Numbers,
    /// also measure what drafts cost and bring at each --depth: passes of 1 to 16 rows of a text, after each of
    /// which a token is chosen, and texts with drafts of which 0.5, 0.7 and 0.9 are right
    #[argh(switch)]
    draft: bool,
    /// also measure the energy of tokens at each --depth, for 5 s each, beside that of the idle machine
    #[argh(switch)]
    energy: bool,
    /// only look for the number of --threads (1 to all fast cores) and the clock at which a token takes the least
    /// energy, at the first --depth; goes with --energy, and as root sets clocks, which are as before in the end
    #[argh(switch)]
    sweep: bool,
    /// with --sweep: the least speed that counts
    #[argh(option, arg_name = "n", from_str_fn(speed))]
    min_tokens_per_s: Option<f64>,
    /// command that prints the watts the machine takes, a line each, where no sensor tells
    #[argh(option)]
    power_cmd: Option<String>,
    /// what the machine takes, IDLE,BUSY watts, where nothing measures it
    #[argh(option, from_str_fn(power::stated))]
    watts: Option<StatedWatts>,
    /// how keys and values are kept: f16, f32 (default for f32 models) or int8
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvKind>,
    /// where layers are computed: cpu (default), gpu, auto (a GPU if it is faster), or part of a device's name
    #[argh(option, from_str_fn(options::device), default = "DeviceChoice::Cpu")]
    device: DeviceChoice,
    /// most of the GPU's memory to use, as in 6G (nine tenths of it)
    #[argh(option, from_str_fn(options::room))]
    gpu_memory: Option<u64>,
    /// numbers of threads to measure (1 and one for each fast core)
    #[argh(option, from_str_fn(counts))]
    threads: Option<Numbers>,
    /// cores to run on, as in 4-7 or 0,2
    #[argh(option, from_str_fn(options::cores))]
    cores: Option<options::Cores>,
    /// packed weights of MODEL: auto, a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    cache: Cache,
    /// weights in huge pages: auto (if there is memory to spare), on or off
    #[argh(option, from_str_fn(weights::huge), default = "Huge::Auto")]
    huge: Huge,
    /// measure links to the node HOST[:PORT] that runs --link-server; self: within this one
    #[argh(option, from_str_fn(link::place))]
    link: Option<HostPort>,
    /// answer --link of other nodes at this HOST[:PORT]
    #[argh(option, from_str_fn(link::place))]
    link_server: Option<HostPort>,
    /// file with the links' key, as for `leap run`
    #[argh(option)]
    key: Option<PathBuf>,
    /// print one JSON object a line
    #[argh(switch)]
    json: bool,
}

struct Numbers(Vec<usize>);

fn numbers(text: &str) -> Result<Numbers, String> {
    let number = |part: &str| part.trim().parse().map_err(|_| format!("{part:?} is no number"));
    text.split(',').map(number).collect::<Result<_, _>>().map(Numbers)
}

fn counts(text: &str) -> Result<Numbers, String> {
    let numbers = numbers(text)?;
    if numbers.0.contains(&0) {
        return Err(format!("{text:?}: each must be at least 1"));
    }
    Ok(numbers)
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| format!("{text:?} is no number of tokens a second"))
}

/// Context length that all measurements of `workload` need; `None` if there is nothing to measure.
fn ctx_len(workload: &[What], header: &Header, has_energy: bool) -> Option<usize> {
    let most = header.max_seq_len;
    let energy = |what: &What| match what {
        What::Decode(depth) if has_energy => energy::ctx_len(*depth).min(most),
        _ => 0,
    };
    workload.iter().map(|what| what.compared_ctx_len(most).max(energy(what))).max()
}

fn tell_left_out(too_long: &[What], header: &Header) {
    if !too_long.is_empty() {
        let names: Vec<String> = too_long.iter().map(What::to_string).collect();
        note(&format!(
            "left out, too long for {} tokens of context: {}",
            header.max_seq_len,
            names.join(", ")
        ));
    }
}

impl Bench {
    pub(super) fn execute(mut self) -> Result<(), Failure> {
        if self.model.is_some() && self.shape.is_some() {
            return Err(Failure::Usage("give a model or a --shape, not both".to_owned()));
        }
        if self.link.is_some() || self.link_server.is_some() {
            return self.links();
        }
        let meter = self.meter()?;
        let isa = options::isa_from_environment()?;
        if let Some(path) = &mut self.model {
            *path = model_files::converted(path, false)?;
        }
        let model = self.open(isa)?;
        let kernels = Engine::kernels(model.as_deref(), isa).map_err(options::engine_failure)?;
        let workload = model.as_deref().map_or(Vec::new(), |model| {
            let (fit, too_long) = self.workload(model.header());
            tell_left_out(&too_long, model.header());
            fit
        });
        let ctx_len =
            model.as_ref().and_then(|model| ctx_len(&workload, model.header(), self.energy));
        let mut table = BenchTable::new(self.json, self.part());
        if self.sweep {
            let (Some(model), Some(meter)) = (&model, &meter) else {
                return Err(Failure::Usage("--sweep takes a model or a --shape".to_owned()));
            };
            let depth = self.depths(&workload).next().unwrap_or(0);
            return self.sweep(model, (&meter.0, meter.1), depth, &mut table);
        }
        if let Some(path) = &self.model {
            table.start(&start::measure(path, &self.cache, isa)?)?;
        }
        for threads in self.threads() {
            let cpus = self.cpus(threads);
            let machine = MeasuredMachine::measure(kernels, &cpus)?;
            table.machine(&kernels, threads, &machine.limits())?;
            if let (Some(model), Some(ctx_len)) = (&model, ctx_len) {
                let mut engine = self.engine(model.clone(), ctx_len, &cpus)?;
                let device = self.device_speeds(&engine, &mut table)?;
                let limits = (&machine, device.map(|speeds| speeds.read));
                model::measure(&mut engine, limits, &workload, |figure| {
                    table.figure(threads, &figure)
                })?;
                if let Some((meter, idle_watts)) = &meter {
                    for depth in self.depths(&workload) {
                        let meter = (&**meter, *idle_watts);
                        let figure = energy::decode(&mut engine, meter, depth, energy::SECONDS)?;
                        table.energy(threads, &figure)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn sweep(
        &self,
        model: &Arc<Model>,
        meter: (&Meter, f64),
        depth: usize,
        table: &mut BenchTable,
    ) -> Result<(), Failure> {
        let ctx_len = energy::ctx_len(depth).min(model.header().max_seq_len);
        let sweep = Sweep {
            threads: &self.threads(),
            cpus: &|threads| self.cpus(threads),
            engine: &|cpus| self.engine(model.clone(), ctx_len, cpus),
            depth,
            min_tokens_per_s: self.min_tokens_per_s,
        };
        let best = sweep.run(meter, &mut |figure| table.sweep(figure))?;
        table.best(&best)
    }

    /// The power meter, and the power of the idle machine in watts.
    fn meter(&self) -> Result<Option<(Arc<Meter>, f64)>, Failure> {
        if !self.energy {
            return Ok(None);
        }
        let Some(meter) = power::meter(self.power_cmd.as_deref(), self.watts)? else {
            let locked = locked(&power::board()?);
            return Err(Failure::Runtime(match locked {
                Some(locked) => format!("{}: {}", locked.text, locked.mend),
                None => "no sensor of power: give --power-cmd or --watts".to_owned(),
            }));
        };
        let idle_watts = energy::idle_watts(&meter, energy::SECONDS)?;
        note(&format!("{}: {idle_watts:.1} W without work", meter.name()));
        Ok(Some((meter, idle_watts)))
    }

    /// Contexts at which energy is measured.
    fn depths<'a>(&self, workload: &'a [What]) -> impl Iterator<Item = usize> + use<'a> {
        workload.iter().filter_map(|what| match what {
            What::Decode(depth) => Some(*depth),
            What::Prefill(_) | What::Draft(_) => None,
        })
    }

    /// Measures links, or answers the measurements of another machine.
    fn links(&self) -> Result<(), Failure> {
        let key = self.key.as_deref().map(key::read).transpose()?;
        match (&self.link, &self.link_server) {
            (Some(server), None) => {
                let mut table = BenchTable::new(self.json, None);
                let links = link::measure(server, key.as_ref(), |figures| table.link(figures))?;
                table.links_of_a_board(&links)
            }
            (None, Some(listen)) => link::serve(listen, key.as_ref(), note),
            _ => Err(Failure::Usage("give --link or --link-server, not both".to_owned())),
        }
    }

    /// Layers of the made-up model, and of the whole shape, if the model has fewer.
    fn part(&self) -> Option<(usize, usize)> {
        let all = self.shape?.n_layers();
        self.layers.filter(|layers| *layers != all).map(|layers| (layers, all))
    }

    fn open(&self, isa: Option<Isa>) -> Result<Option<Arc<Model>>, Failure> {
        if let Some(path) = &self.model {
            return Ok(Some(Arc::new(model_files::open_whole(path)?)));
        }
        let Some(shape) = self.shape else { return Ok(None) };
        let kernels = Engine::kernels(None, isa).map_err(options::engine_failure)?;
        let weights = options::weights_of_shape(self.version, self.embedding_bits)?;
        let header = shape.header(weights);
        let ctx_len = ctx_len(&self.workload(&header).0, &header, self.energy).unwrap_or(1);
        let context = (ctx_len, self.kv);
        let pages = if self.huge == Huge::Off { Pages::Small } else { Pages::Huge };
        let model = made_up::model(shape, self.layers, weights, &kernels, context, pages)?;
        Ok(Some(Arc::new(model)))
    }

    /// Measurements to make, and those left out because they are too long for the model's context.
    fn workload(&self, header: &Header) -> (Vec<What>, Vec<What>) {
        let depths = || self.depth.0.iter().copied();
        let prompts = self.prompt.0.iter().map(|&len| What::Prefill(len));
        let all = depths().map(What::Decode).chain(prompts);
        let all = all.chain(depths().filter(|_| self.draft).map(What::Draft));
        all.partition(|what| what.ctx_len() <= header.max_seq_len)
    }

    fn threads(&self) -> Vec<usize> {
        let all = cpu::cores_worth_using().len();
        let mut threads: Vec<usize> = match &self.threads {
            Some(threads) => threads.0.iter().copied().map(options::useful_threads).collect(),
            None if self.sweep => (1..=all).collect(),
            None => vec![1, all],
        };
        threads.dedup();
        threads
    }

    fn cpus(&self, threads: usize) -> Vec<usize> {
        let cores = self.cores.as_ref().map(|cores| cores.0.clone());
        Options { threads: Some(threads), cores, ..Options::default() }.cpus()
    }

    fn engine(&self, model: Arc<Model>, ctx_len: usize, cpus: &[usize]) -> Result<Engine, Failure> {
        let options = Options {
            ctx_len: Some(ctx_len),
            cores: Some(cpus.to_vec()),
            max_logits: self.draft.then_some(drafts::ROWS_MAX),
            isa: options::isa_from_environment()?,
            kv: self.kv,
            device: DeviceOptions { choice: self.device.clone(), memory: self.gpu_memory },
            ..Options::default()
        };
        let mut engine = options::started(Engine::new(model, &options), &self.device, self.json)?;
        self.pack(&mut engine)?;
        Ok(engine)
    }

    /// Measures the device that computes layers of `engine`, and shows its speeds.
    fn device_speeds(
        &self,
        engine: &Engine,
        table: &mut BenchTable,
    ) -> Result<Option<DeviceSpeeds>, Failure> {
        let Some((name, layers)) = engine.device() else { return Ok(None) };
        let all = devices().map_err(Failure::Runtime)?;
        let speeds = all.iter().find(|line| line.name == name).and_then(|line| line.speeds);
        if let Some(speeds) = speeds {
            table.device(name, layers, speeds)?;
        }
        Ok(speeds)
    }

    /// Packs the weights. A made-up model has no file to keep them beside: they stay in memory.
    fn pack(&self, engine: &mut Engine) -> Result<(), Failure> {
        let cache = if self.shape.is_some() { Cache::Auto } else { self.cache.clone() };
        let place = WeightsPlace { model: self.model.clone(), cache, huge: self.huge };
        weights::prepare(engine, &place, Words::Progress)?;
        // Background work of the preparation must not disturb the measurement.
        engine.await_huge_pages();
        Ok(())
    }
}
