//! The line of figures after an answer, and the JSON object instead of it.

use std::time::Duration;

use super::energy;
use super::session::Session;
use crate::cli::counted;
use crate::engine::team::TeamLead;
use crate::engine::{Engine, JobFigures, Outcome, WeightsIn};
use crate::format::json::JsonObject;
use crate::sys::{huge, memory};
use crate::wire::frame::NodeLine;

/// The seed of the random numbers, if any are drawn.
pub(super) fn seed(session: &Session<'_>) -> Option<u64> {
    (session.flags.temp > 0.0).then_some(session.seed)
}

/// Figures in one line for people.
pub(super) fn line(outcome: &Outcome, session: &Session<'_>) -> String {
    let about = session.engine.about();
    let figures = &outcome.figures;
    let memory = memory::peak_resident_bytes().unwrap_or(0) as f64 / f64::from(1 << 20);
    format!(
        "prompt {}, {:.1} tokens/s; generated {}, {:.1} tokens/s; \
         first token after {:.1} ms{}{}; memory {memory:.1} MiB; {}, {}, weights {}{}",
        counted(figures.prompt_tokens, "token"),
        figures.prompt_tokens_per_s(),
        counted(figures.generated_tokens, "token"),
        figures.generated_tokens_per_s(),
        figures.ttft.as_secs_f64() * 1e3,
        drafts(figures),
        session.energy.words(figures.generated_tokens),
        about.isa.name(),
        counted(about.threads, "thread"),
        weights(about.weights),
        seed(session).map_or(String::new(), |seed| format!("; seed {seed}")),
    )
}

/// Figures of the drafts, if there were any.
fn drafts(figures: &JobFigures) -> String {
    if figures.drafted == 0 {
        return String::new();
    }
    let seconds = (figures.ttft + figures.decode).as_secs_f64();
    format!(
        "; {:.2} tokens a pass, {} of {} drafts right, {:.1} % of the time for drafts",
        figures.tokens_per_pass(),
        figures.accepted(),
        figures.drafted,
        figures.drafting.as_secs_f64() / seconds.max(f64::MIN_POSITIVE) * 1e2,
    )
}

/// Location of the packed weights, in words.
fn weights(place: WeightsIn) -> &'static str {
    match place {
        WeightsIn::Unpacked => "as in the model file",
        WeightsIn::Mapped => "packed, in a mapped file",
        WeightsIn::Memory if huge::is_available() => "packed, in huge pages",
        WeightsIn::Memory => "packed, in memory",
    }
}

/// Figures in one object for programs.
pub(super) fn json(outcome: &Outcome, session: &Session<'_>, prompt: &str, text: &str) -> String {
    let figures = &outcome.figures;
    let about = session.engine.about();
    let object = JsonObject::new()
        .string("model", &session.loaded.name)
        .string("prompt", prompt)
        .string("text", text)
        .string("stop_reason", outcome.reason.name())
        .number("prompt_tokens", figures.prompt_tokens as f64)
        .number("generated_tokens", figures.generated_tokens as f64)
        .number("prompt_tokens_per_s", figures.prompt_tokens_per_s())
        .number("generated_tokens_per_s", figures.generated_tokens_per_s())
        .number("ttft_ms", figures.ttft.as_secs_f64() * 1e3)
        .number("passes", figures.passes as f64)
        .number("drafted_tokens", figures.drafted as f64)
        .number("accepted_tokens", figures.accepted() as f64)
        .number("drafting_ms", figures.drafting.as_secs_f64() * 1e3)
        .number("memory_bytes", memory::peak_resident_bytes().unwrap_or(0) as f64)
        .number("arena_bytes", about.arena_bytes as f64)
        .number("ctx_len", session.engine.ctx_len() as f64)
        .string("isa", about.isa.name())
        .string("kv", about.kv.name())
        .number("threads", about.threads as f64)
        .string("weights", weights(about.weights));
    let object = match seed(session) {
        Some(seed) => object.integer("seed", seed),
        None => object,
    };
    // The energy of each of several answers at the same time is unknown.
    let object = match session.meter.as_ref().filter(|_| session.flags.streams.is_none()) {
        Some(meter) => session.energy.add_to(object, figures.generated_tokens, meter.name()),
        None => object,
    };
    let object = match TeamFigures::new(&session.engine) {
        Some(team) => team.add_to(object),
        None => object,
    };
    match RingFigures::new(&session.engine) {
        Some(ring) => ring.add_to(object).finish(),
        None => object.finish(),
    }
}

/// Times of a ring's token, in milliseconds.
struct RingFigures<'a> {
    lines: &'a [NodeLine],
    token_ms: f64,
    /// Computing time of each node.
    compute_ms: Vec<f64>,
    /// Half the round trips of all links.
    link_ms: f64,
    /// Watts, and joules per token, of each node; `None` for nodes that do not tell.
    energy: Vec<Option<(f64, f64)>>,
}

impl RingFigures<'_> {
    /// `None` without a ring, or before it has decoded anything.
    fn new(engine: &Engine) -> Option<RingFigures<'_>> {
        let ring = engine.ring()?;
        let (lines, times) = (ring.lines(), ring.times());
        let per_batch = |us: u64| us as f64 / 1e3 / times.batches as f64;
        if times.batches == 0 {
            return None;
        }
        let compute_us = times.compute_us.iter().take(lines.len());
        let compute_ms: Vec<f64> = compute_us.map(|&us| per_batch(us)).collect();
        let token_ms = per_batch(times.lap_us);
        let links_ms = lines.iter().map(|line| f64::from(line.way.rtt_us)).sum::<f64>() / 2e3;
        // Round trips are measured when the ring opens; computing times are exact, and limit them.
        let link_ms = links_ms.min(token_ms - compute_ms.iter().sum::<f64>()).max(0.0);
        let per_token =
            |(joules, seconds): (f64, f64)| (joules / seconds, joules / times.tokens as f64);
        let energy = times.energy.iter().take(lines.len());
        let energy = energy.map(|node| node.spent().map(per_token)).collect();
        Some(RingFigures { lines, token_ms, compute_ms, link_ms, energy })
    }

    /// The rest of the time: queues, wake-ups, other streams' turns.
    fn waiting_ms(&self) -> f64 {
        (self.token_ms - self.compute_ms.iter().sum::<f64>() - self.link_ms).max(0.0)
    }

    fn line(&self) -> String {
        let nodes = self.lines.iter().zip(&self.compute_ms);
        let nodes: Vec<String> = nodes.map(|(line, ms)| format!("{} {ms:.2}", line.name)).collect();
        format!(
            "ring: {:.2} ms a pass: computing {} ms; links {:.2} ms; waiting {:.2} ms{}",
            self.token_ms,
            nodes.join(", "),
            self.link_ms,
            self.waiting_ms(),
            self.energy_words(),
        )
    }

    fn energy_words(&self) -> String {
        let nodes = self.lines.iter().zip(&self.energy).filter_map(|(line, energy)| {
            let (watts, joules) = (*energy)?;
            Some(format!("{} {watts:.1} W {} J", line.name, energy::shown(joules)))
        });
        let nodes: Vec<String> = nodes.collect();
        match nodes.is_empty() {
            true => String::new(),
            false => format!("; energy of a token {}", nodes.join(", ")),
        }
    }

    fn add_to(&self, object: JsonObject) -> JsonObject {
        let nodes = self.lines.iter().zip(&self.compute_ms).zip(&self.energy);
        let nodes = nodes.map(|((line, &ms), energy)| {
            let (watts, joules) = energy.unwrap_or((f64::NAN, f64::NAN));
            JsonObject::new()
                .string("name", &line.name)
                .number("first_layer", line.layers.start.into())
                .number("end_layer", line.layers.end.into())
                .number("rtt_us", line.way.rtt_us.into())
                .number("datagram_bytes", line.way.datagram_bytes.into())
                .string("carrier", &line.way.carrier)
                .number("compute_ms", ms)
                .number("watts", watts)
                .number("joules_per_token", joules)
        });
        object
            .objects("nodes", nodes)
            .number("ring_token_ms", self.token_ms)
            .number("ring_link_ms", self.link_ms)
            .number("ring_waiting_ms", self.waiting_ms())
    }
}

/// Figures of the ring or the team in one line for people, if there is one.
pub(super) fn ring_line(engine: &Engine) -> Option<String> {
    RingFigures::new(engine)
        .map(|ring| ring.line())
        .or_else(|| TeamFigures::new(engine).map(|team| team.line()))
}

/// Times of a team's pass.
struct TeamFigures<'a>(&'a TeamLead);

impl<'a> TeamFigures<'a> {
    /// `None` without a team, before its first pass, or if the team is a place of a ring.
    fn new(engine: &'a Engine) -> Option<TeamFigures<'a>> {
        let team = engine.team().filter(|_| engine.ring().is_none());
        team.filter(|team| team.times().passes > 0).map(TeamFigures)
    }

    /// `time` per pass, in milliseconds.
    fn ms(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e3 / f64::from(self.0.times().passes)
    }

    /// The nodes, with the milliseconds that each computed and waited.
    fn nodes(&self) -> impl Iterator<Item = (&'a NodeLine, f64, f64)> {
        let times = self.0.times();
        let ms =
            |(node, line)| (line, self.ms(times.computing[node]), self.ms(times.waiting(node)));
        self.0.lines().enumerate().map(ms)
    }

    fn line(&self) -> String {
        let times = self.0.times();
        let nodes = self.nodes().map(|(line, computing, waiting)| {
            format!("{} computing {computing:.2} ms, waiting {waiting:.2} ms", line.name)
        });
        let nodes: Vec<String> = nodes.collect();
        let (pass, gathers) = (self.ms(times.whole), self.ms(times.gathering()));
        format!("team: {pass:.2} ms a pass: gathers {gathers:.2} ms; {}", nodes.join("; "))
    }

    fn add_to(&self, object: JsonObject) -> JsonObject {
        let times = self.0.times();
        let nodes = self.nodes().map(|(line, computing, waiting)| {
            JsonObject::new()
                .string("name", &line.name)
                .number("rtt_us", line.way.rtt_us.into())
                .number("compute_ms", computing)
                .number("waiting_ms", waiting)
        });
        object
            .objects("nodes", nodes)
            .number("team_pass_ms", self.ms(times.whole))
            .number("team_gather_ms", self.ms(times.gathering()))
    }
}
