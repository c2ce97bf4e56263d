//! `leap plan`: which boards of a fleet take which layers.

pub(super) mod report;
pub(super) mod team;

use std::fs;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use super::{Failure, model_files, note, options, print};
use crate::fleet::load::{self, Asked, BATCH};
use crate::fleet::team_plan::{TeamPlan, quickest};
use crate::fleet::teams_plan::{BOARDS_MAX, TeamsPlan};
use crate::format::model::{Ends, Header};
use crate::format::text_without_mark;
use crate::model::{KvKind, Plan as Sizes, PlanError, Shape};
use crate::ring::TEAM_PORT_DEFAULT;
use crate::ring::plan::{Board, Load, NoSplit, Objective, Part, Task, fleet, solve};
use crate::sys::file::write_whole;

/// Finds out which boards should run which layers of a model, from what was measured of them.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "plan")]
pub(super) struct Plan {
    /// model file or checkpoint
    #[argh(positional)]
    model: Option<PathBuf>,
    /// shape of a well-known model instead, no file needed: tinyllama, llama2-7b, llama3-1b, llama3-3b, llama3-8b,
    /// qwen3-0.6b, qwen3-4b, qwen3-30b-a3b, gemma3-1b, qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, lfm2-1.2b, gemma4-e2b
    #[argh(option, from_str_fn(options::shape))]
    shape: Option<Shape>,
    /// version of the shape's weights: 1 (f32), 2 (int8, default), 3 (4-bit) or
    /// 4 (4.5-bit)
    #[argh(option, default = "2")]
    version: u32,
    /// bits of the embedding and classifier with --version 4: 8 (default) or 6
    #[argh(option, arg_name = "bits", from_str_fn(options::embedding_bits))]
    embedding_bits: Option<Ends>,
    /// file with a line for each board, the master first: name, address, read=GB/s int8=GOP/s
    /// memory=GB rtt=US wire=MB/s, and if known gpu=GB/s,GB of a GPU, watts=IDLE,BUSY and kernel=US,MB/s of a team's
    /// links over the kernel module; always and never say who is to serve; several lines of a board, with threads=N each, are a choice
    #[argh(option)]
    boards: PathBuf,
    /// goal of the split: latency (default) of one stream, throughput of many, energy of a token, or memory
    /// that stays free on the fullest board
    #[argh(option, from_str_fn(options::objective), default = "Objective::Latency")]
    objective: Objective,
    /// only what gives so many tokens a second at least: of one stream, or of all for throughput
    #[argh(option)]
    min_tokens_per_s: Option<f64>,
    /// context of each stream in tokens (the model's, up to 4096)
    #[argh(option, from_str_fn(options::count))]
    ctx: Option<usize>,
    /// streams (1)
    #[argh(option, from_str_fn(options::count), default = "1")]
    streams: usize,
    /// memory of all boards together for the streams' keys and values, as in 500M or 2G (a context
    /// for each stream)
    #[argh(option, from_str_fn(options::room))]
    kv_memory: Option<u64>,
    /// keys and values: f16, f32 or int8 (as for run)
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvKind>,
    /// a team, whose boards share every layer by rows, instead of a ring
    #[argh(switch)]
    team: bool,
    /// a ring whose places may be teams of boards that follow each other in the file, at most 10 in all
    #[argh(switch)]
    teams: bool,
    /// say what bounds the ring, what boards less and more would do, and whether a team is quicker
    #[argh(switch)]
    explain: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
    /// write the ring file, or the team file
    #[argh(option, short = 'o')]
    out: Option<PathBuf>,
}

impl Plan {
    pub(super) fn execute(self) -> Result<(), Failure> {
        if self.min_tokens_per_s.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err(Failure::Usage("--min-tokens-per-s must be above 0".to_owned()));
        }
        let header = self.header()?;
        let load =
            load::load(&header, &self.sizes(&header)).map_err(|e| options::plan_failure(&e))?;
        let path = &self.boards;
        let text = fs::read_to_string(path).map_err(|e| Failure::unreadable(path, &e))?;
        let boards = fleet::parse(text_without_mark(&text))
            .map_err(|what| Failure::Input(format!("{}: {what}", path.display())))?;
        let are_several = quickest(&boards).len() > 1;
        if let Some(why) = header.why_whole().filter(|_| are_several) {
            return Err(Failure::input(&PlanError::Whole(why)));
        }
        if self.teams {
            return self.plan_teams(&header, &load, &boards);
        }
        if self.team {
            return self.plan_team(&header, &load, &boards);
        }
        let task = Task::new(&load, &boards);
        let parts = solve(&task, self.objective, self.min_tokens_per_s).map_err(failure)?;
        if let Some(out) = &self.out {
            write_file(out, &report::ring_file(&task, &parts))?;
        }
        match self.json {
            true => print(&report::json(&task, &parts, None)),
            false => {
                let table = report::table(&task, &parts);
                print(&(table + &self.explanation(&task, &parts, &header)))
            }
        }
    }

    fn plan_team(&self, header: &Header, load: &Load, boards: &[Board]) -> Result<(), Failure> {
        if self.is_for_more_than_a_stream() {
            return Err(Failure::Usage(
                "--team plans for one stream, with nothing to choose".to_owned(),
            ));
        }
        let plan = TeamPlan::new(header, load, boards).map_err(|e| Failure::input(&e))?;
        if let Some((name, need)) = plan.lacks() {
            let need = need as f64 / 1e9;
            return Err(Failure::Runtime(format!(
                "{name} has too little memory, it needs {need:.2} GB"
            )));
        }
        if let Some(out) = &self.out {
            write_file(out, &team::file(&plan, TEAM_PORT_DEFAULT))?;
        }
        print(&if self.json { team::json(&plan) } else { team::table(&plan) })
    }

    fn plan_teams(&self, header: &Header, load: &Load, boards: &[Board]) -> Result<(), Failure> {
        if self.is_for_more_than_a_stream() || self.team {
            return Err(Failure::Usage("--teams plans for one stream, and a ring".to_owned()));
        }
        let n = quickest(boards).len();
        if n > BOARDS_MAX {
            let what = format!("--teams is for {BOARDS_MAX} boards at most, not {n}");
            return Err(Failure::Input(what));
        }
        let plan = TeamsPlan::new(header, load, boards).map_err(failure)?;
        if let Some(out) = &self.out {
            write_file(out, &plan.file())?;
        }
        let (task, parts, by_kernel) = (plan.task(), plan.parts(), plan.by_kernel());
        print(&match self.json {
            true => report::json(&task, parts, Some(by_kernel)),
            false => report::table(&task, parts) + &report::gathers(&task, parts, by_kernel),
        })
    }

    /// True if the options ask for more than the plan that is best for one stream.
    fn is_for_more_than_a_stream(&self) -> bool {
        self.objective != Objective::Latency || self.min_tokens_per_s.is_some() || self.explain
    }

    fn explanation(&self, task: &Task<'_>, parts: &[Part], header: &Header) -> String {
        if !self.explain {
            return String::new();
        }
        let text = report::explain(task, parts, self.objective, self.min_tokens_per_s);
        let Ok(team) = TeamPlan::new(header, task.load(), task.boards()) else { return text };
        let of_ring = 1.0 / task.figures(parts).token_s;
        let verdict = match team.lacks() {
            Some((name, _)) => format!("{name} has too little memory for its part"),
            None if 1.0 / team.token_s() > of_ring => "quicker for one stream".to_owned(),
            None => "the ring is quicker for one stream".to_owned(),
        };
        format!("{text}as a team: {}; {verdict}\n", team::words(&team))
    }

    fn header(&self) -> Result<Header, Failure> {
        match (&self.model, self.shape) {
            (Some(path), None) => model_files::header(path),
            (None, Some(shape)) => {
                Ok(shape.header(options::weights_of_shape(self.version, self.embedding_bits)?))
            }
            _ => Err(Failure::Usage("name a model file, or a --shape".to_owned())),
        }
    }

    fn sizes(&self, header: &Header) -> Sizes {
        let asked = Asked {
            ctx_len: self.ctx,
            batch: BATCH,
            streams: self.streams,
            kv: self.kv,
            kv_memory: self.kv_memory,
        };
        load::sizes(header, asked)
    }
}

fn failure(why: NoSplit) -> Failure {
    match why {
        NoSplit::Watts(_) => Failure::Input(why.to_string()),
        _ => Failure::Runtime(why.to_string()),
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |e| Failure::Runtime(format!("cannot write {}: {e}", path.display()));
    write_whole(path, text.as_bytes()).map_err(failed)?;
    note(&format!("leap: wrote {}", path.display()));
    Ok(())
}
