//! How fast cores may run: the kernel's cpufreq policies, each for some cores that share a clock.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::tree::Tree;

const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
/// Most steps of [`Clocks::steps`].
const STEPS_MAX: usize = 6;
/// Highest clock that is believed, in kHz.
const KHZ_MAX: u64 = 20_000_000;

/// Clocks of some cores that can be capped. Dropping this restores the caps from before.
pub struct Clocks {
    policies: Vec<Policy>,
    /// Clocks to choose from, in kHz, the slowest first.
    steps: Vec<u64>,
}

struct Policy {
    /// File with the highest clock that is allowed.
    cap: PathBuf,
    /// The file's value before.
    before: u64,
}

impl Clocks {
    /// The clocks of the cores `cpus`, if the system has any that can be chosen.
    pub fn find(tree: &Tree, cpus: &[usize]) -> Option<Clocks> {
        let names = tree.names(CPUFREQ).into_iter().filter(|name| name.starts_with("policy"));
        let mut steps: Vec<u64> = Vec::new();
        let mut policies = Vec::new();
        for folder in names.map(|name| format!("{CPUFREQ}/{name}")) {
            let known = tree.text(&format!("{folder}/related_cpus")).unwrap_or_default();
            let mut known = known.split_whitespace().filter_map(|cpu| cpu.parse().ok());
            if !known.any(|cpu: usize| cpus.contains(&cpu)) {
                continue;
            }
            let Some(before) = khz(tree, &format!("{folder}/scaling_max_freq")) else { continue };
            // The fastest cluster's steps serve all: the kernel takes the next clock that a slower cluster has.
            if steps.last().is_none_or(|last| *last < before) {
                steps = offered(tree, &folder, before);
            }
            policies.push(Policy { cap: tree.path(&format!("{folder}/scaling_max_freq")), before });
        }
        (steps.len() > 1).then_some(Clocks { policies, steps })
    }

    /// Some of the clocks that can be chosen, in kHz, the slowest first.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// Lets no core run faster than `khz`.
    ///
    /// # Errors
    /// The system's, usually because only root may do this.
    pub fn cap(&self, khz: u64) -> io::Result<()> {
        self.policies.iter().try_for_each(|policy| write(policy, khz.min(policy.before)))
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        for policy in &self.policies {
            if let Err(e) = write(policy, policy.before) {
                log::debug!("cannot set {} back: {e}", policy.cap.display());
            }
        }
    }
}

fn write(policy: &Policy, khz: u64) -> io::Result<()> {
    // The file is never created: nothing but cpufreq files is written.
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(&policy.cap)?;
    io::Write::write_all(&mut file, format!("{khz}\n").as_bytes())
}

fn khz(tree: &Tree, file: &str) -> Option<u64> {
    let khz = u64::try_from(tree.number(file)?).ok()?;
    (1..=KHZ_MAX).contains(&khz).then_some(khz)
}

/// Up to [`STEPS_MAX`] clocks up to `most`: listed ones, or without a list, clocks at equal distances from the lowest
/// one.
fn offered(tree: &Tree, folder: &str, most: u64) -> Vec<u64> {
    let list = tree.text(&format!("{folder}/scaling_available_frequencies")).unwrap_or_default();
    let mut all: Vec<u64> = list.split_whitespace().filter_map(|khz| khz.parse().ok()).collect();
    all.retain(|khz| (1..=most).contains(khz));
    if all.is_empty() {
        let least = khz(tree, &format!("{folder}/cpuinfo_min_freq")).unwrap_or(most).min(most);
        let last = STEPS_MAX as u64 - 1;
        all = (0..=last).map(|step| least + (most - least) * step / last).collect();
    }
    all.sort_unstable();
    all.dedup();
    let n = all.len().min(STEPS_MAX);
    (1..=n).map(|step| all[all.len() * step / n - 1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("leap-clocks-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(CPUFREQ).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn clocks_are_capped_and_as_before_in_the_end() {
        let root = machine(
            "two",
            &[
                ("policy0/related_cpus", "0 1\n"),
                ("policy0/scaling_max_freq", "1800000\n"),
                ("policy0/scaling_available_frequencies", "408000 600000 1800000 \n"),
                ("policy4/related_cpus", "4 5\n"),
                ("policy4/scaling_max_freq", "2000000\n"),
                (
                    "policy4/scaling_available_frequencies",
                    "2400000 408000 600000 800000 1000000 1200000 1600000 2000000",
                ),
                ("policy6/related_cpus", "6\n"),
                ("policy6/scaling_max_freq", "1000000\n"),
            ],
        );
        let cap = |policy: &str| {
            fs::read_to_string(root.join(CPUFREQ).join(policy).join("scaling_max_freq")).unwrap()
        };
        let clocks = Clocks::find(&Tree::new(&root), &[4, 6]).unwrap();
        assert_eq!(clocks.steps(), [408_000, 600_000, 800_000, 1_000_000, 1_200_000, 2_000_000]);
        clocks.cap(1_200_000).unwrap();
        assert_eq!((cap("policy0").as_str(), cap("policy4").as_str()), ("1800000\n", "1200000\n"));
        assert_eq!(cap("policy6"), "1000000\n");
        drop(clocks);
        assert_eq!((cap("policy4").as_str(), cap("policy6").as_str()), ("2000000\n", "1000000\n"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn clocks_without_a_list_are_at_equal_distances() {
        let files = [
            ("policy0/related_cpus", "0"),
            ("policy0/scaling_max_freq", "3000000"),
            ("policy0/cpuinfo_min_freq", "500000"),
        ];
        let root = machine("range", &files);
        let clocks = Clocks::find(&Tree::new(&root), &[0]).unwrap();
        assert_eq!(
            clocks.steps(),
            [500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000, 3_000_000]
        );
        drop(clocks);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_is_no_clock_is_left_alone() {
        for (index, max) in
            ["", "-1", "x", "99999999999999999999", "0", "800000"].iter().enumerate()
        {
            let files = [("policy0/related_cpus", "0 1 x"), ("policy0/scaling_max_freq", *max)];
            let root = machine(&format!("odd{index}"), &files);
            assert!(Clocks::find(&Tree::new(&root), &[0]).is_none(), "{max}");
            fs::remove_dir_all(root).unwrap();
        }
    }
}
