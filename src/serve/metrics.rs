//! Counters in the text format of Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::engine::ring::{RingMaster, Setbacks};
use crate::engine::team::TeamLead;
use crate::engine::{JobFigures, Outcome, PageFigures, StopReason};
use crate::sys::power::{Meter, PowerReading};

/// Counters of a model since it was loaded, or of the server since its start.
#[derive(Default)]
pub(super) struct Metrics {
    asked: RequestMetrics,
    prompt_tokens: AtomicU64,
    prompt_us: AtomicU64,
    generated_tokens: AtomicU64,
    decode_us: AtomicU64,
    passes: AtomicU64,
    drafting: DraftMetrics,
    running: AtomicUsize,
    queued: AtomicUsize,
    group: GroupMetrics,
    kv: KvMetrics,
    reuse: ReuseMetrics,
}

/// The ring or the team, if this is the master of one.
#[derive(Default)]
struct GroupMetrics {
    nodes: Mutex<Vec<NodeFigures>>,
    /// Losses of the group, and its waits that ended without success.
    setbacks: Mutex<Option<Setbacks>>,
}

/// Requests and their answers.
#[derive(Default)]
pub(super) struct RequestMetrics {
    requests: AtomicU64,
    refused_requests: AtomicU64,
    answers: AtomicU64,
    cancelled_answers: AtomicU64,
}

/// Drafts, and the time that they took.
#[derive(Default)]
pub(super) struct DraftMetrics {
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    drafting_us: AtomicU64,
}

/// Pages of the KV cache.
#[derive(Default)]
pub(super) struct KvMetrics {
    kv_pages: AtomicUsize,
    used_kv_pages: AtomicUsize,
    idle_kv_pages: AtomicUsize,
}

/// Prompt tokens that were not computed.
#[derive(Default)]
pub(super) struct ReuseMetrics {
    prefix_tokens: AtomicU64,
    read_tokens: AtomicU64,
}

/// Totals of answers, including those that run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    prompt_tokens: u64,
    prompt: Duration,
    generated_tokens: u64,
    decode: Duration,
    passes: u64,
    drafted_tokens: u64,
    accepted_tokens: u64,
    drafting: Duration,
}

impl Totals {
    /// Adds the figures of one answer.
    pub(super) fn add(&mut self, figures: &JobFigures) {
        self.prompt_tokens += figures.prompt_tokens as u64;
        self.prompt += figures.ttft;
        self.generated_tokens += figures.generated_tokens as u64;
        self.decode += figures.decode;
        self.passes += figures.passes as u64;
        self.drafted_tokens += figures.drafted as u64;
        self.accepted_tokens += figures.accepted() as u64;
        self.drafting += figures.drafting;
    }
}

/// Figures of a node of the ring.
#[derive(Clone, Debug, Default)]
struct NodeFigures {
    /// Labels of the node.
    about: String,
    /// In the order of [`NODE_METRICS`].
    values: [f64; NODE_METRICS.len()],
}

/// Name, kind and help text of each node's metrics.
const NODE_METRICS: [(&str, &str, &str); 11] = [
    ("leap_node_layers", "gauge", "Layers of the model that the node computes"),
    ("leap_node_bytes_per_token", "gauge", "Bytes of weights that the node reads for a token"),
    ("leap_node_threads", "gauge", "Threads that compute"),
    ("leap_node_round_trip_seconds", "gauge", "Round trip to the next node when the ring opened"),
    ("leap_node_tokens_total", "counter", "Tokens generated since the ring has these layers"),
    (
        "leap_node_compute_seconds_total",
        "counter",
        "Computing for the generated tokens; in a team, in all passes",
    ),
    (
        "leap_node_energy_joules_total",
        "counter",
        "Energy for the generated tokens, if the node measures it",
    ),
    (
        "leap_node_temperature_celsius",
        "gauge",
        "Temperature of the node's warmest part, if it is known",
    ),
    (
        "leap_node_throttled",
        "gauge",
        "1 while heat slows the node down, if its temperature is known",
    ),
    ("leap_node_waiting_seconds_total", "counter", "Waiting for slower nodes of a team"),
    (
        "leap_node_gather_seconds_total",
        "counter",
        "Gathers of a team, without waiting for slower nodes",
    ),
];

fn count(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

/// Seconds from microseconds.
fn seconds(counter: &AtomicU64) -> f64 {
    count(counter) / 1e6
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Metrics {
    /// Adds the figures of `other`.
    pub(super) fn add(&self, other: &Metrics) {
        for (own, other) in self.counters().into_iter().zip(other.counters()) {
            add(own, other.load(Ordering::Relaxed));
        }
        for (own, other) in self.gauges().into_iter().zip(other.gauges()) {
            own.fetch_add(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let lock = PoisonError::into_inner;
        if let Some(setbacks) = *other.group.setbacks.lock().unwrap_or_else(lock) {
            self.set_setbacks(&setbacks);
        }
        let nodes = other.group.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.group.nodes.lock().unwrap_or_else(PoisonError::into_inner).extend(nodes);
    }

    /// Notes that the engine has ended, and its memory is free.
    pub(super) fn rest(&self) {
        self.gauges().into_iter().for_each(|gauge| gauge.store(0, Ordering::Relaxed));
    }

    fn counters(&self) -> [&AtomicU64; 14] {
        let Metrics { asked, drafting, reuse, .. } = self;
        [
            &asked.requests,
            &asked.refused_requests,
            &asked.answers,
            &asked.cancelled_answers,
            &self.prompt_tokens,
            &self.prompt_us,
            &self.generated_tokens,
            &self.decode_us,
            &self.passes,
            &drafting.drafted_tokens,
            &drafting.accepted_tokens,
            &drafting.drafting_us,
            &reuse.prefix_tokens,
            &reuse.read_tokens,
        ]
    }

    fn gauges(&self) -> [&AtomicUsize; 5] {
        let Metrics { running, queued, kv, .. } = self;
        [running, queued, &kv.kv_pages, &kv.used_kv_pages, &kv.idle_kv_pages]
    }

    pub(super) fn count_request(&self, status: u16) {
        add(&self.asked.requests, 1);
        add(&self.asked.refused_requests, u64::from(status >= 400));
    }

    pub(super) fn count_answer(&self, outcome: &Outcome) {
        match outcome.reason {
            StopReason::Interrupted => add(&self.asked.cancelled_answers, 1),
            _ => add(&self.asked.answers, 1),
        }
    }

    /// Counts an answered request of embeddings for texts of `tokens` tokens, after this time; or one whose client has
    /// gone, if there is none.
    pub(super) fn count_vectors(&self, tokens: usize, time: Option<Duration>) {
        match time {
            Some(time) => {
                add(&self.asked.answers, 1);
                add(&self.prompt_tokens, tokens as u64);
                add(&self.prompt_us, us(time));
            }
            None => add(&self.asked.cancelled_answers, 1),
        }
    }

    pub(super) fn set_totals(&self, totals: &Totals) {
        self.prompt_tokens.store(totals.prompt_tokens, Ordering::Relaxed);
        self.prompt_us.store(us(totals.prompt), Ordering::Relaxed);
        self.generated_tokens.store(totals.generated_tokens, Ordering::Relaxed);
        self.decode_us.store(us(totals.decode), Ordering::Relaxed);
        self.passes.store(totals.passes, Ordering::Relaxed);
        self.drafting.drafted_tokens.store(totals.drafted_tokens, Ordering::Relaxed);
        self.drafting.accepted_tokens.store(totals.accepted_tokens, Ordering::Relaxed);
        self.drafting.drafting_us.store(us(totals.drafting), Ordering::Relaxed);
    }

    fn set_setbacks(&self, setbacks: &Setbacks) {
        *self.group.setbacks.lock().unwrap_or_else(PoisonError::into_inner) = Some(*setbacks);
    }

    pub(super) fn set_nodes(&self, ring: &RingMaster) {
        self.set_setbacks(ring.setbacks());
        let (lines, times) = (ring.lines(), ring.times());
        let mut nodes = self.group.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.resize_with(lines.len(), NodeFigures::default);
        for (index, (node, line)) in nodes.iter_mut().zip(lines).enumerate() {
            node.about.clear();
            // Writing to a string cannot fail. Names need no escapes: they consist of letters, digits and a few signs.
            let _ = write!(node.about, "node={:?}", line.name.as_str());
            let energy = times.energy.get(index).and_then(|node| node.spent());
            let compute_us = times.compute_us.get(index).copied().unwrap_or_default();
            let heat = times.heat.get(index).copied().flatten();
            node.values = [
                f64::from(line.layers.end.saturating_sub(line.layers.start)),
                line.bytes_per_token as f64,
                f64::from(line.threads),
                f64::from(line.way.rtt_us) / 1e6,
                times.tokens as f64,
                compute_us as f64 / 1e6,
                energy.map_or(f64::NAN, |(joules, _)| joules),
                heat.map_or(f64::NAN, |heat| heat.degrees.into()),
                heat.map_or(f64::NAN, |heat| f64::from(u8::from(heat.is_slowed))),
                f64::NAN,
                f64::NAN,
            ];
        }
    }

    pub(super) fn set_team(&self, team: &TeamLead, n_layers: usize) {
        self.set_setbacks(team.setbacks());
        let times = team.times();
        let mut nodes = self.group.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.resize_with(team.lines().count(), NodeFigures::default);
        for (index, (node, line)) in nodes.iter_mut().zip(team.lines()).enumerate() {
            node.about.clear();
            let _ = write!(node.about, "node={:?}", line.name.as_str());
            node.values = [
                n_layers as f64,
                line.bytes_per_token as f64,
                f64::from(line.threads),
                f64::from(line.way.rtt_us) / 1e6,
                f64::NAN,
                times.computing[index].as_secs_f64(),
                f64::NAN,
                f64::NAN,
                f64::NAN,
                times.waiting(index).as_secs_f64(),
                times.gathering().as_secs_f64(),
            ];
        }
    }

    pub(super) fn set_jobs(&self, running: usize, queued: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.queued.store(queued, Ordering::Relaxed);
    }

    pub(super) fn set_pages(&self, pages: &PageFigures) {
        self.kv.kv_pages.store(pages.n_pages, Ordering::Relaxed);
        self.kv.used_kv_pages.store(pages.n_used, Ordering::Relaxed);
        self.kv.idle_kv_pages.store(pages.n_idle, Ordering::Relaxed);
        self.reuse.prefix_tokens.store(pages.hits, Ordering::Relaxed);
        self.reuse.read_tokens.store(pages.read, Ordering::Relaxed);
    }

    /// All metrics in the text format, each with its help text and kind.
    pub(super) fn text(&self, meter: Option<&Meter>) -> String {
        let gauge = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed) as f64;
        let answers = [
            ("leap_requests_total", "counter", "HTTP requests", count(&self.asked.requests)),
            (
                "leap_requests_refused_total",
                "counter",
                "HTTP requests that were answered with an error",
                count(&self.asked.refused_requests),
            ),
            (
                "leap_answers_total",
                "counter",
                "Answers that were finished",
                count(&self.asked.answers),
            ),
            (
                "leap_answers_cancelled_total",
                "counter",
                "Answers whose client went away, or that the server's end cut short",
                count(&self.asked.cancelled_answers),
            ),
            (
                "leap_prompt_tokens_total",
                "counter",
                "Tokens of prompts that went through the model",
                count(&self.prompt_tokens),
            ),
            (
                "leap_prompt_seconds_total",
                "counter",
                "Time from a free stream to the first token, added up over answers",
                seconds(&self.prompt_us),
            ),
            (
                "leap_generated_tokens_total",
                "counter",
                "Tokens generated",
                count(&self.generated_tokens),
            ),
            (
                "leap_decode_seconds_total",
                "counter",
                "Time from the first token to the last, added up over answers",
                seconds(&self.decode_us),
            ),
            ("leap_jobs_running", "gauge", "Answers that have a stream", gauge(&self.running)),
            ("leap_jobs_queued", "gauge", "Answers that wait for a stream", gauge(&self.queued)),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in
            answers.into_iter().chain(self.drafts()).chain(self.pages()).chain(self.energy(meter))
        {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        self.add_nodes(&mut text);
        self.add_setbacks(&mut text);
        text
    }

    /// Adds what the ring or the team lost, if there is one.
    fn add_setbacks(&self, text: &mut String) {
        let setbacks = *self.group.setbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(setbacks) = setbacks else { return };
        let name = "leap_setbacks_total";
        let help = "Failures of the ring or team, what they cost, and waits in vain";
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for (kind, n) in setbacks.counts() {
            let _ = writeln!(text, "{name}{{kind=\"{kind}\"}} {n}");
        }
    }

    /// Adds a line for each figure of each node, if there is a ring.
    fn add_nodes(&self, text: &mut String) {
        let nodes = self.group.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = NODE_METRICS.iter().enumerate().filter(|_| !nodes.is_empty());
        for (index, (name, kind, help)) in metrics {
            let known = nodes.iter().filter(|node| !node.values[index].is_nan());
            if known.clone().next().is_none() {
                continue;
            }
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for node in known {
                let _ = writeln!(text, "{name}{{{}}} {}", node.about, node.values[index]);
            }
        }
    }

    /// Metrics of passes and drafts.
    fn drafts(&self) -> [(&'static str, &'static str, &'static str, f64); 4] {
        [
            (
                "leap_passes_total",
                "counter",
                "Passes through the model that gave tokens, added up over answers",
                count(&self.passes),
            ),
            (
                "leap_drafted_tokens_total",
                "counter",
                "Guessed tokens that went through the model",
                count(&self.drafting.drafted_tokens),
            ),
            (
                "leap_accepted_tokens_total",
                "counter",
                "Tokens of answers that were guessed right",
                count(&self.drafting.accepted_tokens),
            ),
            (
                "leap_drafting_seconds_total",
                "counter",
                "Time that guessing took",
                seconds(&self.drafting.drafting_us),
            ),
        ]
    }

    /// Metrics of energy, while the sensor answers.
    fn energy(
        &self,
        meter: Option<&Meter>,
    ) -> impl Iterator<Item = (&'static str, &'static str, &'static str, f64)> + use<> {
        let reading = meter.and_then(Meter::latest);
        let tokens = count(&self.generated_tokens);
        let metrics = reading.map(|PowerReading { joules, working_joules, watts, .. }| {
            [
                ("leap_power_watts", "gauge", "Power that this board takes", watts),
                (
                    "leap_energy_joules_total",
                    "counter",
                    "Energy that this board took since the server's start",
                    Some(joules),
                ),
                (
                    "leap_answers_energy_joules_total",
                    "counter",
                    "Energy that this board took while there was something to answer",
                    Some(working_joules),
                ),
                (
                    "leap_token_energy_joules",
                    "gauge",
                    "Energy of answers for each generated token, prompts included",
                    (tokens > 0.0).then_some(working_joules / tokens),
                ),
            ]
        });
        let metrics = metrics.into_iter().flatten();
        metrics.filter_map(|(name, kind, help, value)| Some((name, kind, help, value?)))
    }

    /// Metrics of keys and values.
    fn pages(&self) -> [(&'static str, &'static str, &'static str, f64); 5] {
        let gauge = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed) as f64;
        [
            (
                "leap_prefix_tokens_total",
                "counter",
                "Tokens of prompts that were not computed, as their keys and values were held",
                self.reuse.prefix_tokens.load(Ordering::Relaxed) as f64,
            ),
            (
                "leap_prefix_file_tokens_total",
                "counter",
                "Tokens whose keys and values were read from files of the prefix cache",
                self.reuse.read_tokens.load(Ordering::Relaxed) as f64,
            ),
            (
                "leap_kv_pages",
                "gauge",
                "Pages of keys and values that streams share; 0 in a team that is no ring",
                gauge(&self.kv.kv_pages),
            ),
            (
                "leap_kv_pages_used",
                "gauge",
                "Pages that answers hold",
                gauge(&self.kv.used_kv_pages),
            ),
            (
                "leap_kv_pages_idle",
                "gauge",
                "Pages in no use, kept for texts that begin alike",
                gauge(&self.kv.idle_kv_pages),
            ),
        ]
    }
}
