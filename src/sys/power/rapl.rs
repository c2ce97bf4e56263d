//! The energy counters of x86 processors (RAPL), through powercap.

use crate::sys::tree::Tree;

const POWERCAP: &str = "sys/class/powercap";

/// The counters of all packages, and of memory where it has its own.
pub(super) struct Rapl {
    tree: Tree,
    zones: Vec<Zone>,
}

/// A counter of microjoules that wraps after `range`.
struct Zone {
    file: String,
    range: Option<u64>,
    last: Option<u64>,
}

impl Rapl {
    /// The counters, with their name.
    pub(super) fn find(tree: &Tree) -> Option<(String, Rapl)> {
        let zones: Vec<Zone> = zones(tree).collect();
        let name = match zones.len() {
            0 => return None,
            1 => "RAPL of the processor".to_owned(),
            n => format!("RAPL, {n} counters"),
        };
        Some((name, Rapl { tree: tree.clone(), zones }))
    }

    /// Energy since the last call in joules, 0 at the first call; `None` if a counter does not answer.
    pub(super) fn joules(&mut self) -> Option<f64> {
        let spent: Vec<Option<u64>> =
            self.zones.iter_mut().map(|zone| zone.microjoules(&self.tree)).collect();
        let spent: Option<u64> = spent.into_iter().sum();
        if spent.is_none() {
            // Counts of the other zones must not be added to a later sum.
            self.zones.iter_mut().for_each(|zone| zone.last = None);
        }
        Some(spent? as f64 / 1e6)
    }
}

impl Zone {
    fn microjoules(&mut self, tree: &Tree) -> Option<u64> {
        let counted = tree.number(&self.file).and_then(|n| u64::try_from(n).ok());
        let last = std::mem::replace(&mut self.last, counted);
        let (counted, last) = (counted?, last.or(counted)?);
        match counted.checked_sub(last) {
            Some(spent) => Some(spent),
            None => self.range?.checked_sub(last)?.checked_add(counted),
        }
    }
}

/// Packages and memory: cores and graphics are parts of a package, and `psys` counts it once more.
fn zones(tree: &Tree) -> impl Iterator<Item = Zone> {
    let folders = tree.names(POWERCAP).into_iter();
    let folders = folders.filter(|name| name.starts_with("intel-rapl:"));
    let folders = folders.map(|name| format!("{POWERCAP}/{name}"));
    folders.filter_map(|folder| {
        let name = tree.text(&format!("{folder}/name"))?;
        let range = tree.number(&format!("{folder}/max_energy_range_uj"));
        let is_ours = name.starts_with("package") || name == "dram";
        is_ours.then(|| Zone {
            file: format!("{folder}/energy_uj"),
            range: range.and_then(|range| u64::try_from(range).ok()),
            last: None,
        })
    })
}

/// File of a counter that exists but cannot be read.
pub(super) fn locked_file(tree: &Tree) -> Option<String> {
    zones(tree).map(|zone| zone.file).find(|file| tree.has(file) && tree.text(file).is_none())
}
