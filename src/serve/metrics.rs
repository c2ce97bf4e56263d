//! Counters in the text format of Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::engine::{Outcome, StopReason};

/// What the server counts from its start on.
#[derive(Default)]
pub(super) struct Metrics {
    requests: AtomicU64,
    refused_requests: AtomicU64,
    answers: AtomicU64,
    cancelled_answers: AtomicU64,
    prompt_tokens: AtomicU64,
    prompt_us: AtomicU64,
    generated_tokens: AtomicU64,
    decode_us: AtomicU64,
    running: AtomicUsize,
    queued: AtomicUsize,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Metrics {
    pub(super) fn count_request(&self, status: u16) {
        add(&self.requests, 1);
        add(&self.refused_requests, u64::from(status >= 400));
    }

    pub(super) fn count_answer(&self, outcome: &Outcome) {
        let figures = &outcome.figures;
        match outcome.reason {
            StopReason::Interrupted => add(&self.cancelled_answers, 1),
            _ => add(&self.answers, 1),
        }
        add(&self.prompt_tokens, figures.prompt_tokens as u64);
        add(&self.prompt_us, us(figures.ttft));
        add(&self.generated_tokens, figures.generated_tokens as u64);
        add(&self.decode_us, us(figures.decode));
    }

    pub(super) fn set_jobs(&self, running: usize, queued: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.queued.store(queued, Ordering::Relaxed);
    }

    /// All of them, a line each with what it means before it.
    pub(super) fn text(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let seconds = |counter: &AtomicU64| count(counter) / 1e6;
        let gauge = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed) as f64;
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("leap_requests_total", "counter", "HTTP requests", count(&self.requests)),
            (
                "leap_requests_refused_total",
                "counter",
                "HTTP requests that were answered with an error",
                count(&self.refused_requests),
            ),
            ("leap_answers_total", "counter", "Answers that were finished", count(&self.answers)),
            (
                "leap_answers_cancelled_total",
                "counter",
                "Answers whose client went away, or that the server's end cut short",
                count(&self.cancelled_answers),
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
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}
