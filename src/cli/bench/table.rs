//! The figures, as a table for people or as JSON objects for programs.

use super::drafts::{DraftsFigure, RowsFigure};
use super::energy::EnergyFigure;
use super::link;
use super::machine::MachineLimits;
use super::model::{Figure, ModelFigure};
use super::start::StartFigures;
use super::sweep::SweepFigure;
use crate::cli::{Failure, counted, note, print};
use crate::engine::DeviceSpeeds;
use crate::format::json::JsonObject;
use crate::kernels::Kernels;
use crate::sys::memory;

/// Prints each figure as soon as it is known.
pub(super) struct BenchTable {
    is_json: bool,
    /// Layers of the model and of its whole shape, if the model has fewer.
    part: Option<(usize, usize)>,
}

impl BenchTable {
    pub(super) fn new(is_json: bool, part: Option<(usize, usize)>) -> BenchTable {
        BenchTable { is_json, part }
    }

    /// Shows the time to the first token.
    pub(super) fn start(&mut self, start: &StartFigures) -> Result<(), Failure> {
        if self.is_json {
            let object = JsonObject::new()
                .string("what", "start")
                .number("cold_ttft_ms", start.cold_ms)
                .number("warm_ttft_ms", start.warm_ms)
                .number("token_ms", start.token_ms)
                .number("memory_bytes", start.anonymous_bytes as f64)
                .number("arena_bytes", start.arena_bytes as f64);
            return print(&object.finish());
        }
        print(&format!(
            "start to first token: {:.0} ms cold, {:.1} ms warm, of which {:.1} ms are the token; \
             {:.1} MiB of own memory, {:.1} MiB of that buffers and KV cache\n",
            start.cold_ms,
            start.warm_ms,
            start.token_ms,
            start.anonymous_bytes as f64 / f64::from(1 << 20),
            start.arena_bytes as f64 / f64::from(1 << 20),
        ))
    }

    /// Adds the figures of a carrier between two nodes.
    pub(super) fn link(&mut self, figures: &link::LinkFigures) -> Result<(), Failure> {
        figures.notices.iter().for_each(|notice| note(notice));
        if self.is_json {
            let gathers = figures.gathers.iter().map(|gather| {
                JsonObject::new()
                    .integer("bytes", gather.bytes as u64)
                    .number("p50_us", gather.p50_us)
                    .number("p99_us", gather.p99_us)
                    .number("cpu_us", gather.cpu_us.unwrap_or(f64::NAN))
            });
            let object = JsonObject::new()
                .string("what", "link")
                .string("carrier", &figures.carrier)
                .number("round_trip_p50_us", figures.p50_us)
                .number("round_trip_p99_us", figures.p99_us)
                .number("cpu_us", figures.cpu_us.unwrap_or(f64::NAN))
                .number("bytes_per_s", figures.bytes_per_s.unwrap_or(f64::NAN))
                .objects("gathers", gathers)
                .number("datagram_bytes", figures.datagram_bytes.map_or(f64::NAN, f64::from));
            return print(&object.finish());
        }
        let cpu = figures.cpu_us.map_or(String::new(), |us| format!(", {us:.0} us of CPU time"));
        let speed = figures.bytes_per_s.map_or(String::new(), |bytes_per_s| {
            format!(", {:.0} MB/s one way", bytes_per_s / 1e6)
        });
        let datagrams = figures
            .datagram_bytes
            .map_or(String::new(), |bytes| format!(", datagrams of {bytes} bytes"));
        print(&format!(
            "{:<12} 16 KiB there and back: {:>7.1} us half of the time, {:>7.1} us in 99 of 100{cpu}{speed}{datagrams}\n",
            figures.carrier, figures.p50_us, figures.p99_us,
        ))?;
        let gather = |gather: &link::GatherFigures| {
            let link::GatherFigures { bytes, p50_us, p99_us, cpu_us } = gather;
            let cpu = cpu_us.map_or(String::new(), |us| format!(" ({us:.0} of CPU time)"));
            format!("{} KiB {p50_us:.1} and {p99_us:.1} us{cpu}", bytes >> 10)
        };
        let gathers: Vec<String> = figures.gathers.iter().map(gather).collect();
        match gathers.is_empty() {
            true => Ok(()),
            false => {
                print(&format!("{:<12} gathers of a team of both: {}\n", "", gathers.join(", ")))
            }
        }
    }

    /// Adds the figures of a board's line for `leap plan`, in its words. Latency is that of a team's short gathers,
    /// both ways.
    pub(super) fn links_of_a_board(&mut self, links: &[link::LinkFigures]) -> Result<(), Failure> {
        let words = |carrier: &str| {
            let link = links.iter().find(|link| link.carrier.starts_with(carrier))?;
            Some((2.0 * link.gathers.first()?.p50_us, link.bytes_per_s? / 1e6))
        };
        let Some((rtt, wire)) = words("udp").filter(|_| !self.is_json) else { return Ok(()) };
        let kernel = words("kernel").map(|(rtt, wire)| format!(" kernel={rtt:.1},{wire:.0}"));
        let kernel = kernel.unwrap_or_default();
        print(&format!("for leap plan: rtt={rtt:.1} wire={wire:.0}{kernel}\n"))
    }

    /// Adds the machine's limits with `threads` threads.
    pub(super) fn machine(
        &mut self,
        kernels: &Kernels,
        threads: usize,
        limits: &MachineLimits,
    ) -> Result<(), Failure> {
        if self.is_json {
            let object = JsonObject::new()
                .string("what", "machine")
                .string("isa", kernels.isa().name())
                .number("threads", threads as f64)
                .number("read_bytes_per_s", limits.read_bytes_per_s)
                .number("int8_ops_per_s", limits.int8_ops_per_s);
            return print(&object.finish());
        }
        print(&format!(
            "{} kernels, {}: reads {:.1} GB/s, int8 peak {:.0} GOP/s\n",
            kernels.isa().name(),
            counted(threads, "thread"),
            limits.read_bytes_per_s / 1e9,
            limits.int8_ops_per_s / 1e9,
        ))
    }

    /// Adds the speeds of the device that computes the last `layers` layers.
    pub(super) fn device(
        &mut self,
        name: &str,
        layers: usize,
        DeviceSpeeds { read, multiplied }: DeviceSpeeds,
    ) -> Result<(), Failure> {
        if self.is_json {
            let object = JsonObject::new()
                .string("what", "device")
                .string("name", name)
                .integer("layers", layers as u64)
                .number("read_bytes_per_s", read)
                .number("multiplied_bytes_per_s", multiplied);
            return print(&object.finish());
        }
        print(&format!(
            "{name}, the last {}: reads {:.1} GB/s, multiplies weights at {:.1} GB/s\n",
            counted(layers, "layer"),
            read / 1e9,
            multiplied / 1e9,
        ))
    }

    /// Adds a measurement of a model.
    pub(super) fn figure(&mut self, threads: usize, figure: &Figure) -> Result<(), Failure> {
        match figure {
            Figure::Speed(figure) => self.speed(threads, figure),
            Figure::Rows(figure) => self.rows(threads, figure),
            Figure::Drafts(figure) => self.drafts(threads, figure),
        }
    }

    fn speed(&mut self, threads: usize, figure: &ModelFigure) -> Result<(), Failure> {
        let (what, tokens) = figure.what.parts();
        let of_bandwidth = 100.0 * figure.bytes_per_s / figure.limits.read_bytes_per_s;
        let of_peak = 100.0 * figure.ops_per_s / figure.limits.int8_ops_per_s;
        let memory = memory::resident_bytes().unwrap_or(0);
        if self.is_json {
            let object = JsonObject::new()
                .string("what", what)
                .number("threads", threads as f64)
                .number("tokens", tokens as f64)
                .number("tokens_per_s", figure.tokens_per_s)
                .number("percent_of_bandwidth", of_bandwidth)
                .number("percent_of_int8_peak", of_peak)
                .number("read_bytes_per_s", figure.limits.read_bytes_per_s)
                .number("int8_ops_per_s", figure.limits.int8_ops_per_s)
                .number("memory_bytes", memory as f64);
            let object = self.with_part(object);
            return print(&match figure.of_rows_bound {
                Some(times) => object.number("of_rows_bound", times).finish(),
                None => object.finish(),
            });
        }
        let part = self.part();
        let of_rows_bound = figure.of_rows_bound.map_or(String::new(), |times| {
            format!(", {times:.2} × the longer of one row and {tokens} of a prompt")
        });
        print(&format!(
            "  {what:<8}{tokens:>6} {:>9.1} tokens/s {of_bandwidth:>6.1} % of bandwidth \
             {of_peak:>6.1} % of int8 peak {:>7} MiB{part}{of_rows_bound}\n",
            figure.tokens_per_s,
            memory >> 20,
        ))
    }

    /// Adds passes of few rows.
    fn rows(&mut self, threads: usize, figure: &RowsFigure) -> Result<(), Failure> {
        let RowsFigure { depth, seconds } = figure;
        let times = seconds.map(|pass| pass / seconds[0]);
        if self.is_json {
            for ((rows, pass), times) in (1..).zip(seconds).zip(&times) {
                let object = JsonObject::new()
                    .string("what", "rows")
                    .number("threads", threads as f64)
                    .number("tokens", *depth as f64)
                    .integer("rows", rows)
                    .number("ms", 1e3 * pass)
                    .number("of_one_row", *times);
                print(&self.with_part(object).finish())?;
            }
            return Ok(());
        }
        let times: Vec<String> = times.iter().skip(1).map(|times| format!("{times:.2}")).collect();
        print(&format!(
            "  rows    {depth:>6} {:>9.2} ms for 1, for 2 to {} times {}{}\n",
            1e3 * seconds[0],
            seconds.len(),
            times.join(" "),
            self.part(),
        ))
    }

    /// Adds a text with drafts.
    fn drafts(&mut self, threads: usize, figure: &DraftsFigure) -> Result<(), Failure> {
        let gain = figure.tokens_per_s / figure.plain_tokens_per_s;
        if self.is_json {
            let object = JsonObject::new()
                .string("what", "drafts")
                .number("threads", threads as f64)
                .number("tokens", figure.depth as f64)
                .number("hits", figure.hits)
                .number("tokens_per_s", figure.tokens_per_s)
                .number("plain_tokens_per_s", figure.plain_tokens_per_s)
                .number("of_plain", gain)
                .number("tokens_per_pass", figure.tokens_per_pass);
            return print(&self.with_part(object).finish());
        }
        print(&format!(
            "  drafts  {:>6} {:>9.1} tokens/s if {:.1} of them are right, {gain:.2} times the {:.1} without; \
             {:.2} tokens a pass{}\n",
            figure.depth,
            figure.tokens_per_s,
            figure.hits,
            figure.plain_tokens_per_s,
            figure.tokens_per_pass,
            self.part(),
        ))
    }

    /// Adds the energy of decoding.
    pub(super) fn energy(&mut self, threads: usize, figure: &EnergyFigure) -> Result<(), Failure> {
        let (whole, added) = (figure.joules_per_token(), figure.added_joules_per_token());
        if self.is_json {
            let object = JsonObject::new();
            let object = object.string("what", "energy").number("threads", threads as f64);
            return print(&self.with_part(energy_object(object, figure)).finish());
        }
        print(&format!(
            "  energy  {:>6} {:>9.1} tokens/s {:>6.1} W {whole:.4} J a token, {added:.4} J without the {:.1} W \
             of the idle machine{}\n",
            figure.depth,
            figure.tokens_per_s(),
            figure.spent.watts(),
            figure.idle_watts,
            self.part(),
        ))
    }

    /// Adds the energy of decoding with one number of threads, at one clock.
    pub(super) fn sweep(&mut self, figure: &SweepFigure) -> Result<(), Failure> {
        if self.is_json {
            return print(&self.with_part(sweep_object("sweep", figure)).finish());
        }
        let SweepFigure { threads, khz, energy } = figure;
        let (whole, added) = (energy.joules_per_token(), energy.added_joules_per_token());
        print(&format!(
            "  {:<10} {:>8} {:>9.1} tokens/s {:>6.1} W {whole:.4} J a token, {added:.4} J without the {:.1} W \
             of the idle machine{}\n",
            counted(*threads, "thread"),
            khz.map_or(String::new(), ghz),
            energy.tokens_per_s(),
            energy.spent.watts(),
            energy.idle_watts,
            self.part(),
        ))
    }

    /// Adds the setting with the lowest energy per token, and what to type for it.
    pub(super) fn best(&mut self, figure: &SweepFigure) -> Result<(), Failure> {
        if self.is_json {
            return print(&self.with_part(sweep_object("best", figure)).finish());
        }
        let SweepFigure { threads, khz, energy } = figure;
        let at = khz.map_or(String::new(), |khz| format!(" at {}", ghz(khz)));
        print(&format!(
            "least energy: {}{at}, {:.4} J a token, {:.1} tokens/s\n",
            counted(*threads, "thread"),
            energy.joules_per_token(),
            energy.tokens_per_s(),
        ))?;
        let clocks = khz.map_or(String::new(), |khz| {
            format!("sudo leap-tune start --objective energy --max-khz {khz}, and ")
        });
        print(&format!("to have that: {clocks}--threads {threads}\n"))
    }

    /// `object` with the number of measured layers, if these are not all.
    fn with_part(&self, object: JsonObject) -> JsonObject {
        match self.part {
            Some((layers, _)) => object.number("layers", layers as f64),
            None => object,
        }
    }

    /// The measured part of the model in words; empty if all of it was measured.
    fn part(&self) -> String {
        self.part.map_or(String::new(), |(n, all)| format!(", {n} of {all} layers"))
    }
}

fn ghz(khz: u64) -> String {
    format!("{:.2} GHz", khz as f64 / 1e6)
}

fn sweep_object(what: &str, figure: &SweepFigure) -> JsonObject {
    let SweepFigure { threads, khz, energy } = figure;
    let object = JsonObject::new().string("what", what).number("threads", *threads as f64);
    let object = match khz {
        Some(khz) => object.number("khz", *khz as f64),
        None => object,
    };
    energy_object(object, energy)
}

fn energy_object(object: JsonObject, figure: &EnergyFigure) -> JsonObject {
    object
        .number("tokens", figure.depth as f64)
        .number("watts", figure.spent.watts())
        .number("idle_watts", figure.idle_watts)
        .number("joules_per_token", figure.joules_per_token())
        .number("added_joules_per_token", figure.added_joules_per_token())
        .number("tokens_per_s", figure.tokens_per_s())
}
