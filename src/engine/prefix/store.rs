//! The page files of one node, which hold its own layers' part of the pages.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::page_file::{Fault, HEAD_BYTES, Key, Kind, PageFile, PageName};
use super::shelf::{self, Shelf};
use super::writer::Writer;
use crate::model::{
    KV_PAGE, KvKind, KvPart, KvPlace, PagePair, Plan, Share, Stage, StageInfo, StatePlace,
};

/// Minimum number of pages of a prompt that would be computed again, for which files are written. Recomputing fewer takes
/// little time, and boards' storage wears out.
pub(in crate::engine) const PAGES_MIN: usize = 4;

/// Most files after the same text that are searched for the longest common beginning with a prompt.
const TAILS_MAX: usize = 16;

/// A text, and whether it is a long one.
pub(in crate::engine) type Text<'a> = (&'a [u32], bool);

/// A computed page of a stream's prompt, or a state behind a part of a page. The pages of a prompt come in order, and
/// the states of a page behind it. No page comes after those of the prompt's last page if that is not full.
pub(in crate::engine) struct PromptPage<'a> {
    pub(in crate::engine) stream: usize,
    pub(in crate::engine) is_long: bool,
    /// Index of the page in the prompt.
    pub(in crate::engine) index: usize,
    /// Number of full pages of the prompt.
    pub(in crate::engine) n_whole: usize,
    /// Ids of the page; of a state those of its page up to the state.
    pub(in crate::engine) ids: &'a [u32],
    /// Pages of the KV cache that hold it.
    pub(in crate::engine) at: PagePair,
    /// Number of the checkpoint with the state behind the ids; `None` if the page alone is meant.
    pub(in crate::engine) state: Option<u32>,
}

/// A page of a text, or the state behind the text, to be read from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct PageToRead {
    /// Index of the page in the text.
    pub(in crate::engine) index: usize,
    /// Kind of the file.
    pub(in crate::engine) kind: Kind,
    /// Page of the KV cache to fill, or number of the checkpoint.
    pub(in crate::engine) page: u32,
}

/// Page files of prompt beginnings in a folder: this node's layers' part of the pages.
pub struct Store {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
    writer: Writer,
    /// Most bytes of all files together.
    limit: u64,
    /// Fingerprint of the whole model, equal on all nodes that have some of its layers.
    fingerprint: u64,
    /// Shape of the KV cache that files were last matched with.
    shape: Option<Shape>,
    /// Progress of each stream's prompt.
    prompts: Vec<Prompt>,
    /// Buffer for the keys and values of a page, or for a state.
    scratch: Vec<u8>,
    /// Number of ids in pages that were read.
    pub(super) n_read: u64,
}

/// Dimensions of the keys and values of a page.
struct Shape {
    share: Share,
    plan: Plan,
    /// Keys of the empty text: for ordinary texts, and for long ones.
    roots: [Key; 2],
    /// Layers that store keys and values, without a window and with one, and recurrent ones, in the order of [`Kind`].
    layers: [Vec<usize>; 3],
    /// Parts of these layers of a page; recurrent layers have none.
    parts: [Vec<KvPart>; 3],
    /// Bytes of a layer's part of a state; 0 if the model has none.
    state_bytes: usize,
}

/// How much of a prompt is in files, or in the queue for them.
#[derive(Clone, Debug, Default)]
struct Prompt {
    n_pages: usize,
    /// Key of the text up to there; and whether the text is a long one.
    key: Option<(Key, bool)>,
    /// Key of the text before the last of these pages.
    before: Option<Key>,
    /// Number of ids before the last state in files.
    state_at: usize,
    /// Whether enough pages were missing to write files.
    is_worth_it: bool,
    is_done: bool,
}

impl Store {
    /// Opens `folder` for pages of the model with this `fingerprint`. All models' pages in it share `limit`
    /// bytes.
    ///
    /// # Errors
    /// If the folder cannot be made or listed, or the system refuses a thread.
    pub fn open(folder: &Path, limit: u64, fingerprint: u64) -> io::Result<Store> {
        // The files hold people's prompts: only the owner may read them.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        shelf::remove_leftovers(folder)?;
        let shelf = Arc::new(Mutex::new(Shelf::list(folder)?));
        let writer = Writer::start(folder.to_owned(), Arc::clone(&shelf), limit)?;
        let folder = folder.to_owned();
        let (shape, prompts, scratch) = (None, Vec::new(), Vec::new());
        Ok(Store { folder, shelf, writer, limit, fingerprint, shape, prompts, scratch, n_read: 0 })
    }

    /// Number of ids in pages that were read.
    pub(in crate::engine) fn n_read(&self) -> u64 {
        self.n_read
    }

    /// Selects the pages of `stage`'s layers in their present format. Pages of other formats have other
    /// names.
    pub(in crate::engine) fn fit<S: Stage + ?Sized>(&mut self, stage: &S) {
        let StageInfo { share, plan, .. } = stage.about();
        if self.shape.as_ref().is_some_and(|own| own.share == *share && own.plan == *plan) {
            return;
        }
        let shape = Shape::new(stage, self.fingerprint);
        let [whole, windowed, state] = Kind::ALL.map(|kind| shape.bytes(kind));
        let page = whole.max(windowed);
        self.writer.make_room(HEAD_BYTES + page, shape.has_states().then_some(HEAD_BYTES + state));
        self.scratch.reserve_exact(page.max(state).saturating_sub(self.scratch.len()));
        self.prompts.clear();
        self.prompts.resize(plan.n_streams, Prompt::default());
        self.shape = Some(shape);
    }

    fn shape(&self) -> &Shape {
        self.shape.as_ref().expect("it is made fit first")
    }

    /// Begins a text: what it uses counts as used later than all before.
    pub(in crate::engine) fn begin_text(&self) {
        self.shelf().begin_prompt();
    }

    /// Hands a new page or state to the writer. `false` if the caller should try again later because the queue for the
    /// disk is full. `true` does not promise that the page is written.
    pub(in crate::engine) fn keep<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        told: &PromptPage<'_>,
    ) -> bool {
        self.fit(stage);
        let Some(prompt) = self.prompts.get(told.stream) else { return true };
        if self.file_bytes(Kind::State) > self.limit {
            // Pages are of no use without a state behind them.
            return true;
        }
        let mut prompt = prompt.clone();
        let is_taken = match told.state {
            None => self.keep_page(stage, &mut prompt, told),
            Some(checkpoint) => self.keep_state(stage, &mut prompt, (told, checkpoint)),
        };
        if is_taken {
            self.prompts[told.stream] = prompt;
        }
        is_taken
    }

    fn keep_page<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        prompt: &mut Prompt,
        told: &PromptPage<'_>,
    ) -> bool {
        let PromptPage { is_long, index, n_whole, ids, at, .. } = *told;
        if index == 0 {
            *prompt = Prompt::default();
            self.begin_text();
        }
        let (parent, was_long) = prompt.key.unwrap_or((self.root(is_long), is_long));
        // A text that becomes long is computed again. After a missed page the names of later pages are
        // unknown.
        prompt.is_done |= was_long != is_long || prompt.n_pages != index;
        let name = PageName::new(parent, index, ids);
        let mut is_taken = true;
        let n_known = self.n_known(prompt, &name, ids);
        let is_short = n_whole * KV_PAGE < n_known + PAGES_MIN * KV_PAGE;
        let window = at.window.map(|window| (name.of_kind(Kind::Windowed), window));
        for (name, page) in [(name, at.page)].into_iter().chain(window) {
            if prompt.is_done || self.shelf().has(&name) {
                continue;
            }
            prompt.is_done = !prompt.is_worth_it && is_short;
            if !prompt.is_done {
                prompt.is_worth_it = true;
                is_taken &= self.write(stage, name, ids, page);
            }
        }
        prompt.goes_on(index, (parent, name.own, is_long));
        is_taken
    }

    /// Number of a prompt's ids that need not be computed without the page `name` of `ids`.
    fn n_known(&self, prompt: &mut Prompt, name: &PageName, ids: &[u32]) -> usize {
        let first = name.index as usize * KV_PAGE;
        if !self.shape().has_states() {
            return first;
        }
        // Texts that branch off inside the page continue from these, too.
        let last = self.shelf().use_states(name.parent, name.index as usize, ids);
        prompt.state_at = last.map_or(prompt.state_at, |len| first + len);
        prompt.state_at
    }

    /// Hands a state to the writer, with its page up to the state: texts that go on otherwise have no other page.
    fn keep_state<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        prompt: &mut Prompt,
        (told, checkpoint): (&PromptPage<'_>, u32),
    ) -> bool {
        let PromptPage { is_long, index, n_whole, ids, at, .. } = *told;
        // The state's page is the last one told, or the one behind it, which is not full.
        let parent = match prompt.n_pages.checked_sub(index) {
            Some(0) => prompt.key.map(|(key, _)| key),
            Some(1) => prompt.before,
            _ => None,
        };
        let is_of_text = prompt.key.is_some_and(|(_, was_long)| was_long == is_long);
        let Some(parent) = parent.filter(|_| is_of_text && !prompt.is_done) else { return true };
        let page = PageName::new(parent, index, ids);
        let name = page.of_kind(Kind::State);
        let pos = index * KV_PAGE + ids.len();
        let (has_state, has_page) = {
            let mut shelf = self.shelf();
            (shelf.has(&name), shelf.has(&page))
        };
        let is_far = pos - prompt.state_at.min(pos) >= PAGES_MIN * KV_PAGE;
        if has_state && has_page {
            prompt.state_at = pos;
            return true;
        }
        if n_whole < PAGES_MIN
            || !(prompt.is_worth_it || is_far)
            || !self.fits([has_page, has_state])
        {
            return true;
        }
        let is_taken = (has_page || self.write(stage, page, ids, at.page))
            && (has_state || self.write(stage, name, ids, checkpoint));
        prompt.is_worth_it = true;
        prompt.state_at = pos;
        is_taken
    }

    /// Whether a state and its page fit the limit beside the files that their own text uses, to which those belong that
    /// are there already.
    fn fits(&self, [has_page, has_state]: [bool; 2]) -> bool {
        let files = [(has_page, Kind::Whole), (has_state, Kind::State)];
        let missing = files.iter().filter(|(is_there, _)| !is_there);
        let more: u64 = missing.map(|(_, kind)| self.file_bytes(*kind)).sum();
        self.shelf().bytes_in_use() + more <= self.limit
    }

    /// Bytes of a file of this kind; 0 for states of models without recurrent layers.
    fn file_bytes(&self, kind: Kind) -> u64 {
        match kind {
            Kind::State if !self.shape().has_states() => 0,
            _ => (HEAD_BYTES + self.shape().bytes(kind)) as u64,
        }
    }

    /// Keeps a page or state without a retry: if the disk is too slow, it is written when a prompt like this comes
    /// again.
    pub(in crate::engine) fn keep_or_miss<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        told: &PromptPage<'_>,
    ) {
        if !self.keep(stage, told) && told.state.is_none() {
            let root = self.root(told.is_long);
            let prompt = &mut self.prompts[told.stream];
            if told.index == 0 {
                *prompt = Prompt::default();
            }
            let parent = prompt.key.map_or(root, |(key, _)| key);
            let own = PageName::new(parent, told.index, told.ids).own;
            prompt.goes_on(told.index, (parent, own, told.is_long));
            prompt.is_worth_it = true;
        }
    }

    /// Queues a page of the KV cache, or the state in the checkpoint `page`, for writing. `false` if the queue is full;
    /// `true` also if it can never be written.
    fn write<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        name: PageName,
        ids: &[u32],
        page: u32,
    ) -> bool {
        let shape = self.shape.as_ref().expect("it is made fit first");
        let body_bytes = shape.bytes(name.kind);
        let bytes = (HEAD_BYTES + body_bytes) as u64;
        if bytes > self.limit {
            return true;
        }
        if !self.writer.has_room(name.kind) {
            return false;
        }
        self.scratch.resize(body_bytes, 0);
        let mut read = |layer: usize, out: &mut [u8]| match name.kind {
            Kind::State => stage.read_state(StatePlace { layer, checkpoint: page }, out),
            _ => stage.read_kv(KvPlace { layer, page: page as usize }, out),
        };
        if !shape.parts_mut(name.kind, &mut self.scratch).all(|(layer, out)| read(layer, out)) {
            return true;
        }
        // Promise first, because the thread may have written the page before the next line here.
        self.shelf().promise(name, bytes);
        if !self.writer.offer(name, ids, (&self.scratch, &shape.parts[name.kind as usize])) {
            self.shelf().remove(&name);
        }
        true
    }

    /// Names of a text's pages. The last page may have fewer ids.
    pub(super) fn names(&self, (ids, is_long): Text<'_>) -> Vec<PageName> {
        let mut parent = self.root(is_long);
        let name = |(index, page): (usize, &[u32])| {
            let name = PageName::new(parent, index, page);
            parent = name.own;
            name
        };
        ids.chunks(KV_PAGE).enumerate().map(name).collect()
    }

    /// Key of the empty text, for long texts or for others.
    pub(super) fn root(&self, is_long: bool) -> Key {
        self.shape().roots[usize::from(is_long)]
    }

    /// Whether a page can be read. Counts as a use.
    pub(super) fn has(&self, name: &PageName) -> bool {
        self.shelf().has_written(name)
    }

    /// Forgets a page that not all nodes have: it is of no use until it is written again.
    pub(super) fn doubt(&self, name: &PageName) {
        self.shelf().remove(name);
    }

    /// Number of ids before the last state in files that `ids` can continue from, if their first `n_there` pages are in
    /// memory. Does not count as a use.
    pub(super) fn last_state(&self, (ids, is_long): Text<'_>, n_there: usize) -> Option<usize> {
        let mut parent = self.root(is_long);
        let mut last = None;
        for (index, page) in ids.chunks(KV_PAGE).enumerate() {
            let shelf = self.shelf();
            let is_whole = |len: usize| len == KV_PAGE && index < n_there;
            let can_read = |(len, name): &(usize, PageName)| {
                shelf.is_written(name)
                    && (is_whole(*len) || shelf.is_written(&name.of_kind(Kind::Whole)))
            };
            let found = shelf.states(parent, index, page).into_iter().find(can_read);
            last = found.map(|(len, _)| index * KV_PAGE + len).or(last);
            let name = PageName::new(parent, index, page);
            if page.len() < KV_PAGE || index >= n_there && !shelf.is_written(&name) {
                break;
            }
            parent = name.own;
        }
        last
    }

    /// Ids of the stored page after the text `parent` that has the longest common beginning with `rest`, if
    /// that is longer than `n_there`.
    pub(super) fn best_tail(&self, parent: Key, rest: &[u32], n_there: usize) -> Option<Vec<u32>> {
        let names = self.shelf().after(parent, TAILS_MAX);
        let ids = names.iter().filter_map(|name| Some(self.find(name)?.ids().collect()));
        let common = |ids: &Vec<u32>| ids.iter().zip(rest).take_while(|(a, b)| a == b).count();
        let best = ids.max_by_key(common)?;
        (common(&best) > n_there).then_some(best)
    }

    /// Reads pages of a text up to the first missing one. Returns the number of pages read.
    pub(in crate::engine) fn read<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        text: Text<'_>,
        pages: &[PageToRead],
    ) -> usize {
        self.fit(stage);
        let names = self.names(text);
        let is_read = |page: &&PageToRead| {
            let Some(name) = names.get(page.index) else { return false };
            self.read_file(stage, &name.of_kind(page.kind), page.page)
        };
        pages.iter().take_while(is_read).count()
    }
}

impl Store {
    /// Reads the file `name` to a page of the KV cache, or a state to the checkpoint `page`; `false` if no intact one
    /// exists.
    fn read_file<S: Stage + ?Sized>(&mut self, stage: &mut S, name: &PageName, page: u32) -> bool {
        let mut body = std::mem::take(&mut self.scratch);
        let shape = self.shape();
        body.resize(shape.bytes(name.kind), 0);
        let is_read = self.has(name)
            && self.find(name).is_some_and(|file| self.judge(name, file.read(&mut body)).is_some());
        let mut write = |layer: usize, bytes: &[u8]| match name.kind {
            Kind::State => stage.write_state(StatePlace { layer, checkpoint: page }, bytes),
            _ => stage.write_kv(KvPlace { layer, page: page as usize }, 0, bytes),
        };
        let mut parts = shape.parts_mut(name.kind, &mut body);
        let is_there = is_read && parts.all(|(layer, bytes)| write(layer, bytes));
        drop(parts);
        self.scratch = body;
        is_there
    }

    fn find(&self, name: &PageName) -> Option<PageFile> {
        self.judge(name, PageFile::open(&self.folder, name))
    }

    /// Returns what was found. Reports and removes a file that is damaged.
    fn judge<T>(&self, name: &PageName, found: Result<T, Fault>) -> Option<T> {
        let fault = match found {
            Ok(found) => return Some(found),
            Err(fault) => fault,
        };
        self.shelf().remove(name);
        let path = self.folder.join(name.to_string());
        match fault {
            Fault::Gone => {}
            Fault::Io(e) => log::warn!("cannot read {}: {e}", path.display()),
            Fault::Damaged(what) => {
                log::warn!("{} is not used, and removed: {what}", path.display());
                // If the file cannot be removed, it is found again after the next start.
                let _ = fs::remove_file(path);
            }
        }
        None
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prompt {
    /// Notes the page `index`, between the texts `parent` and `own`.
    fn goes_on(&mut self, index: usize, (parent, own, is_long): (Key, Key, bool)) {
        (self.n_pages, self.key) = (index + 1, Some((own, is_long)));
        self.before = Some(parent);
    }
}

impl Shape {
    fn new<S: Stage + ?Sized>(stage: &S, fingerprint: u64) -> Shape {
        let StageInfo { share, plan, header, .. } = stage.about();
        let (recurrent, others): (Vec<usize>, Vec<usize>) =
            share.layers.clone().partition(|layer| header.mixer(*layer).is_some());
        // The others' keys and values are in the parts of earlier layers.
        let stored = others.into_iter().filter(|layer| stage.kv_part_bytes(*layer) > Some(0));
        let (whole, windowed): (Vec<usize>, Vec<usize>) =
            stored.partition(|layer| !stage.is_windowed(*layer));
        let layers = [whole, windowed, recurrent];
        let part = |layer: &usize| plan.kv_part_of(header, *layer);
        let parts = layers.each_ref().map(|layers| layers.iter().filter_map(part).collect());
        let (part_bytes, state_bytes) = (plan.kv_part(header).bytes(), stage.state_bytes());
        let window = plan.kv_plan(header).window.map_or(0, |window| window.window);
        let root = |is_long: bool| {
            let kind = [kv_code(plan.kv), usize::from(is_long), KV_PAGE, part_bytes, window];
            let model = [header.n_layers, header.n_kv_heads, header.head_dim];
            let own = [share.layers.start, share.layers.end, layers[0].len(), layers[1].len()];
            let state = header.has_state().then_some([state_bytes, layers[2].len()]);
            let state = state.into_iter().flatten();
            let parts = kind.into_iter().chain(model).chain(own).chain(state).map(|n| n as u64);
            Key::root(&[fingerprint].into_iter().chain(parts).collect::<Vec<u64>>())
        };
        let roots = [false, true].map(root);
        Shape { share: share.clone(), plan: *plan, roots, layers, parts, state_bytes }
    }

    /// Whether the model has recurrent layers.
    fn has_states(&self) -> bool {
        self.state_bytes > 0
    }

    /// Bytes of each layer's part of what a file holds.
    fn part_bytes(&self, kind: Kind) -> impl Iterator<Item = usize> {
        let parts = &self.parts[kind as usize];
        let bytes = |index| parts.get(index).map_or(self.state_bytes, KvPart::bytes);
        (0..self.layers[kind as usize].len()).map(bytes)
    }

    /// Bytes of a page's keys and values, or of a state.
    fn bytes(&self, kind: Kind) -> usize {
        self.part_bytes(kind).sum()
    }

    /// The layers that a file has parts of, with their parts of its `body`.
    fn parts_mut<'a>(
        &'a self,
        kind: Kind,
        mut body: &'a mut [u8],
    ) -> impl Iterator<Item = (usize, &'a mut [u8])> {
        let layers = self.layers[kind as usize].iter().copied();
        layers.zip(self.part_bytes(kind)).map(move |(layer, bytes)| {
            let (part, rest) = std::mem::take(&mut body).split_at_mut(bytes);
            body = rest;
            (layer, part)
        })
    }
}

/// The code of a KV format in the keys of texts.
fn kv_code(kind: KvKind) -> usize {
    match kind {
        KvKind::F16 => 2,
        KvKind::F32 => 4,
        KvKind::Int8 => 1,
    }
}
