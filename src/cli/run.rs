//! `leap run`: generates text, or holds a conversation.

mod chat;
mod complete;
mod drafting;
#[cfg(feature = "tools")]
mod editor;
mod energy;
mod figures;
mod flags;
mod input;
mod messages;
mod session;
mod streams;
mod terminal;
mod thinking;
mod worker;

#[cfg(feature = "tools")]
use super::convert;
use super::draft::Beside;
use super::draft_node::DraftNode;
use super::model_files::{self, Loaded};

use super::power;
use super::weights;
use super::words::Line;
use super::{Failure, options, overwritten, ring, warn};
use crate::engine::{Engine, Options, Scheduler};
use crate::fleet::boards::Boards;
use crate::fleet::gather::gather;
use crate::fleet::interrupt::is_interrupted;
use crate::fleet::load::Asked;
use crate::fleet::ring_board::RingBoard;
use crate::fleet::settings::Settings;
use crate::fleet::team_board::TeamBoard;
use crate::sys::power::Meter;
use crate::sys::{memory, signal};
pub(super) use flags::Run;

use super::boards::failure;
use super::ring::announce;
use super::roles::Role;
use energy::AnswerEnergy;
use session::Session;

impl Run {
    #[cfg_attr(not(feature = "tools"), expect(unused_mut, reason = "nothing is converted"))]
    pub(super) fn execute(mut self, line: &Line) -> Result<(), Failure> {
        let role = line.role;
        self.check(role)?;
        let named = self.boards(line)?;
        signal::install().map_err(|e| Failure::runtime(&e))?;
        signal::count_one().map_err(|e| Failure::runtime(&e))?;
        #[cfg(feature = "tools")]
        self.convert(role, named.has_others())?;
        let meter = match role {
            Role::Worker => None,
            Role::Single | Role::Master => power::meter(self.power_cmd.as_deref(), self.watts)?,
        };
        let mut settings = self.settings(named, role)?;
        let (loaded, board) = match role {
            Role::Worker => return worker::work(&self, &settings),
            Role::Master if !matches!(settings.boards, Boards::Shares(_)) => {
                self.gather(&mut settings, meter.as_deref())?;
                ring::load(&settings, &self.place(), self.tokenizer.as_deref())?
            }
            Role::Single | Role::Master => {
                let model = self.model.as_deref();
                (model_files::load(model, self.tokenizer.as_deref())?, None)
            }
        };
        overwritten::watch(self.model.as_deref(), &loaded.model);
        let batch = self.batch.or(board.as_ref().map(|_| ring::BATCH));
        let mut engine = self.engine(&loaded, batch, board.as_ref())?;
        let fail = |e| failure(settings.named_by, e);
        let team = TeamBoard::find(&settings).map_err(fail)?;
        match &team {
            Some(team) => team.prepare(&mut engine, &self.place(), &|| {}).map_err(fail)?,
            None => weights::prepare(&mut engine, &self.place(), self.words())?,
        }
        // Lets a signal end an answer at once, not after the prompt that is being read.
        engine.interrupt_by(is_interrupted);
        let nodes = (team.as_ref(), board.as_ref());
        let of = (&settings, &self.place());
        let control = ring::begin(&mut engine, nodes, of, meter.clone(), &announce)?;
        let n_streams = self.streams.unwrap_or(1);
        let scheduler = Scheduler::new(&mut engine, n_streams, Some(&loaded.tokenizer));
        let mut scheduler = scheduler.map_err(|e| Failure::runtime(&e))?;
        self.draft.begin(&mut scheduler, &mut engine, &self.beside(&loaded, &settings.boards))?;
        let seed = self.seed();
        let energy = AnswerEnergy::default();
        let (flags, loaded) = (&self, &loaded);
        let session = Session { flags, loaded, engine, scheduler, control, seed, meter, energy };
        match (self.chat, self.streams) {
            (true, _) => chat::run(session),
            (false, Some(_)) => streams::run(session),
            (false, None) => complete::run(session),
        }
    }

    /// Converts a checkpoint that is given instead of a model file, and uses the result.
    #[cfg(feature = "tools")]
    fn convert(&mut self, role: Role, has_boards: bool) -> Result<(), Failure> {
        let wanted = convert::Wanted {
            version: self.version,
            ends: self.embedding_bits,
            has_boards,
            needs_tokenizer: self.tokenizer.is_none() && role != Role::Worker,
            is_quiet: self.quiet,
        };
        self.model = convert::model_file(self.model.take(), wanted)?;
        Ok(())
    }

    /// Divides the model among the boards that wait for it, if there are any.
    fn gather(&self, settings: &mut Settings, meter: Option<&Meter>) -> Result<(), Failure> {
        let asked = Asked {
            ctx_len: self.ctx,
            batch: self.batch.unwrap_or(ring::BATCH),
            streams: self.streams.unwrap_or(1),
            kv: self.kv,
            kv_memory: None,
        };
        let options = options::of_cores(self.threads, self.cores.as_ref())?;
        gather(settings, self.model.as_deref(), asked, &self.cache, (&options, meter))
            .map_err(|e| failure(settings.named_by, e))
    }

    fn beside<'a>(&'a self, loaded: &'a Loaded, boards: &'a Boards) -> Beside<'a> {
        let key = self.key.as_deref();
        Beside {
            node: self.draft_node.as_ref().map(|at| DraftNode { at, key, boards }),
            tokenizer: &loaded.tokenizer,
            threads: self.threads,
            cores: self.cores.as_ref(),
            cache: &self.cache,
            huge: self.huge,
            is_quiet: self.quiet,
        }
    }

    fn engine(
        &self,
        loaded: &Loaded,
        batch: Option<usize>,
        board: Option<&RingBoard<'_>>,
    ) -> Result<Engine, Failure> {
        let options = options::of_cores(self.threads, self.cores.as_ref())?;
        let options = Options {
            ctx_len: self.ctx,
            batch,
            n_streams: self.streams,
            max_logits: Some(self.draft.max_logits(self.streams.unwrap_or(1))),
            kv: self.kv,
            threads: options.threads.or_else(|| board.and_then(RingBoard::threads)),
            ..options
        };
        let engine =
            Engine::new(loaded.model.clone(), &options).map_err(options::engine_failure)?;
        let needed = engine.about().arena_bytes as u64;
        if let Some(available) = memory::available_bytes().filter(|&bytes| bytes < needed) {
            warn(&format!(
                "context and buffers need {} MiB, {} MiB of memory are free; try a smaller --ctx",
                needed >> 20,
                available >> 20
            ));
        }
        Ok(engine)
    }
}
