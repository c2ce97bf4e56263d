//! The page files of one node, which hold its own layers' part of the pages.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::page_file::{Fault, HEAD_BYTES, Key, PageFile, PageName};
use super::shelf::{self, Shelf};
use super::writer::Writer;
use crate::model::{KV_PAGE, KvKind, KvPart, KvPlace, PagePair, Plan, Share, Stage, StageInfo};

/// Minimum number of missing pages of a prompt for which files are written. Recomputing fewer takes little
/// time, and boards' storage wears out.
pub(in crate::engine) const PAGES_MIN: usize = 4;

/// Most files after the same text that are searched for the longest common beginning with a prompt.
const TAILS_MAX: usize = 16;

/// A text, and whether it is a long one.
pub(in crate::engine) type Text<'a> = (&'a [u32], bool);

/// A computed page of a stream's prompt. The pages of a prompt come in order.
pub(in crate::engine) struct PromptPage<'a> {
    pub(in crate::engine) stream: usize,
    pub(in crate::engine) is_long: bool,
    /// Index of the page in the prompt.
    pub(in crate::engine) index: usize,
    /// Number of full pages of the prompt.
    pub(in crate::engine) n_whole: usize,
    pub(in crate::engine) ids: &'a [u32],
    /// Pages of the KV cache that hold it.
    pub(in crate::engine) at: PagePair,
}

/// A page of a text, to be read from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct PageToRead {
    /// Index of the page in the text.
    pub(in crate::engine) index: usize,
    /// Whether it is a page for layers with a window.
    pub(in crate::engine) is_windowed: bool,
    /// Page of the KV cache to fill.
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
    /// State of each stream's prompt.
    prompts: Vec<Prompt>,
    /// Buffer for the keys and values of a page.
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
    /// Layers without a window, and those with one.
    layers: [Vec<usize>; 2],
    /// Bytes of a layer's part of a page.
    part_bytes: usize,
    part: KvPart,
}

/// How much of a prompt is in files, or in the queue for them.
#[derive(Clone, Debug, Default)]
struct Prompt {
    n_pages: usize,
    /// Key of the text up to there; and whether the text is a long one.
    key: Option<(Key, bool)>,
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
        let bytes = [false, true].map(|is_windowed| shape.bytes(is_windowed));
        let most = bytes[0].max(bytes[1]);
        self.writer.make_room(HEAD_BYTES + most);
        self.scratch.reserve_exact(most.saturating_sub(self.scratch.len()));
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

    /// Hands a new page to the writer. `false` if the caller should try again later because the queue for the
    /// disk is full. `true` does not promise that the page is written.
    pub(in crate::engine) fn keep<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        told: &PromptPage<'_>,
    ) -> bool {
        self.fit(stage);
        let PromptPage { stream, is_long, index, n_whole, ids, at } = *told;
        let Some(prompt) = self.prompts.get(stream) else { return true };
        let mut prompt = prompt.clone();
        if index == 0 {
            prompt = Prompt::default();
            self.begin_text();
        }
        let root = self.shape().roots[usize::from(is_long)];
        let (parent, was_long) = prompt.key.unwrap_or((root, is_long));
        // A text that becomes long is computed again. After a missed page the names of later pages are
        // unknown.
        prompt.is_done |= was_long != is_long || prompt.n_pages != index;
        let name = PageName::new(parent, index, ids);
        let mut is_taken = true;
        let window = at.window.map(|window| (name.windowed(), window));
        for (name, page) in [(name, at.page)].into_iter().chain(window) {
            if prompt.is_done || self.shelf().has(&name) {
                continue;
            }
            prompt.is_done = !prompt.is_worth_it && n_whole.saturating_sub(index) < PAGES_MIN;
            if !prompt.is_done {
                prompt.is_worth_it = true;
                is_taken &= self.write(stage, name, ids, page);
            }
        }
        (prompt.n_pages, prompt.key) = (index + 1, Some((name.own, is_long)));
        if is_taken {
            self.prompts[stream] = prompt;
        }
        is_taken
    }

    /// Keeps a page without a retry: if the disk is too slow, the page is written when a prompt like this
    /// comes again.
    pub(in crate::engine) fn keep_or_miss<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        told: &PromptPage<'_>,
    ) {
        if !self.keep(stage, told) {
            let root = self.shape().roots[usize::from(told.is_long)];
            let prompt = &mut self.prompts[told.stream];
            if told.index == 0 {
                *prompt = Prompt::default();
            }
            let parent = prompt.key.map_or(root, |(key, _)| key);
            let own = PageName::new(parent, told.index, told.ids).own;
            (prompt.n_pages, prompt.key) = (told.index + 1, Some((own, told.is_long)));
            prompt.is_worth_it = true;
        }
    }

    /// Queues a page for writing. `false` if the queue is full; `true` also if the page can never be written.
    fn write<S: Stage + ?Sized>(
        &mut self,
        stage: &mut S,
        name: PageName,
        ids: &[u32],
        page: u32,
    ) -> bool {
        let shape = self.shape.as_ref().expect("it is made fit first");
        let kv_bytes = shape.bytes(name.is_windowed);
        let bytes = (HEAD_BYTES + kv_bytes) as u64;
        if bytes > self.limit {
            return true;
        }
        if !self.writer.has_room() {
            return false;
        }
        self.scratch.resize(kv_bytes, 0);
        let parts = self.scratch.chunks_exact_mut(shape.part_bytes);
        let layers = shape.layers[usize::from(name.is_windowed)].iter();
        let place = |layer: &usize| KvPlace { layer: *layer, page: page as usize };
        if !layers.zip(parts).all(|(layer, out)| stage.read_kv(place(layer), out)) {
            return true;
        }
        // Promise first, because the thread may have written the page before the next line here.
        self.shelf().promise(name, bytes);
        if !self.writer.offer(name, ids, (&self.scratch, &shape.part)) {
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
            let name = if page.is_windowed { name.windowed() } else { *name };
            self.read_page(stage, &name, page.page)
        };
        pages.iter().take_while(is_read).count()
    }
}

impl Store {
    /// Reads the page `name`; `false` if no intact one exists.
    fn read_page<S: Stage + ?Sized>(&mut self, stage: &mut S, name: &PageName, page: u32) -> bool {
        let mut kv = std::mem::take(&mut self.scratch);
        let shape = self.shape();
        kv.resize(shape.bytes(name.is_windowed), 0);
        let is_read = self.has(name)
            && self.find(name).is_some_and(|file| self.judge(name, file.read(&mut kv)).is_some());
        let layers = shape.layers[usize::from(name.is_windowed)].iter();
        let mut parts = layers.zip(kv.chunks_exact(shape.part_bytes));
        let place = |layer: &usize| KvPlace { layer: *layer, page: page as usize };
        let is_there =
            is_read && parts.all(|(layer, bytes)| stage.write_kv(place(layer), 0, bytes));
        self.scratch = kv;
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

impl Shape {
    fn new<S: Stage + ?Sized>(stage: &S, fingerprint: u64) -> Shape {
        let StageInfo { share, plan, header, .. } = stage.about();
        let (whole, windowed): (Vec<usize>, Vec<usize>) =
            share.layers.clone().partition(|layer| !stage.is_windowed(*layer));
        let layers = [whole, windowed];
        let part_bytes = stage.kv_part_bytes();
        let window = plan.kv_plan(header).window.map_or(0, |window| window.window);
        let root = |is_long: bool| {
            let kind = [kv_code(plan.kv), usize::from(is_long), KV_PAGE, part_bytes, window];
            let model = [header.n_layers, header.n_kv_heads, header.head_dim];
            let own = [share.layers.start, share.layers.end, layers[0].len(), layers[1].len()];
            let parts = kind.into_iter().chain(model).chain(own).map(|n| n as u64);
            Key::root(&[fingerprint].into_iter().chain(parts).collect::<Vec<u64>>())
        };
        let (roots, part) = ([false, true].map(root), plan.kv_part(header));
        Shape { share: share.clone(), plan: *plan, roots, layers, part_bytes, part }
    }

    /// Bytes of a page's keys and values.
    fn bytes(&self, is_windowed: bool) -> usize {
        self.layers[usize::from(is_windowed)].len() * self.part_bytes
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
