//! The machine's cores: how many, how fast relative to each other, and pinning to them.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::cgroup;
use super::tree::Tree;

/// A core this process may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The kernel's number of the core.
    pub cpu: usize,
    /// Speed relative to the other cores, as the kernel's `cpu_capacity` gives it. The fastest core has 1024 on most
    /// boards; all are equal if the kernel does not say.
    pub capacity: u32,
}

/// The cores this process may use, the fastest first.
pub fn cores() -> Vec<Core> {
    let mut cores: Vec<Core> =
        allowed().iter().map(|&cpu| Core { cpu, capacity: capacity(cpu) }).collect();
    sort_fastest_first(&mut cores);
    cores
}

/// The cores worth using by default: those at least three quarters as fast as the fastest.
///
/// A core much slower than the rest reads little memory and delays every step's end.
pub fn fast_cores(cores: &[Core]) -> Vec<usize> {
    let fastest = cores.iter().map(|c| c.capacity).max().unwrap_or(0);
    cores.iter().filter(|c| c.capacity * 4 >= fastest * 3).map(|c| c.cpu).collect()
}

/// The cores worth using by default, at most as many as the control groups' quota allows.
pub fn cores_worth_using() -> Vec<usize> {
    bounded(fast_cores(&cores()), quota(&Tree::new(Path::new("/"))))
}

/// Number of computing threads that make sense on this machine: one for each core, within the control groups'
/// quota.
pub fn n_useful_threads() -> usize {
    bounded(cores(), quota(&Tree::new(Path::new("/")))).len()
}

/// Whole CPUs within the quota of the process's control groups, on the machine of `tree`; `None` if they set
/// no quota.
pub fn quota(tree: &Tree) -> Option<usize> {
    cgroup::cpus(tree)
}

/// The first of `cores`, at most as many as the quota of CPUs allows.
fn bounded<T>(mut cores: Vec<T>, quota: Option<usize>) -> Vec<T> {
    cores.truncate(quota.unwrap_or(usize::MAX).max(1));
    cores
}

/// Gives the calling thread the lowest priority, and lets it run on any core.
pub fn give_way() {
    unpin_current_thread();
    // SAFETY: only numbers are passed. The thread goes on as before if the system refuses.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS as _, 0, 19) };
}

/// Lets the calling thread run on every core the process may use.
///
/// A new thread inherits the pinning of the thread that made it.
pub fn unpin_current_thread() {
    let mut set = CpuSet::new();
    let is_complete = allowed().iter().all(|&cpu| set.set(cpu).is_ok());
    if is_complete && sched_setaffinity(Pid::from_raw(0), &set).is_err() {
        log::debug!("cannot unpin a thread");
    }
}

/// Pins the calling thread to `cpu`. If that is not allowed, the thread stays where it is.
pub fn pin_current_thread(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_err() {
        log::debug!("cannot pin a thread to core {cpu}");
    }
}

/// The cores that the process may use. They are asked for once, because the caller may be pinned to one core later.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| match sched_getaffinity(Pid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect(),
        Err(_) => vec![0],
    })
}

fn capacity(cpu: usize) -> u32 {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

/// Bytes of the largest cache of a core that this process may use; 0 if the kernel does not report it.
pub fn cache_bytes() -> u64 {
    let caches = format!("/sys/devices/system/cpu/cpu{}/cache", allowed().first().unwrap_or(&0));
    let entries = fs::read_dir(caches).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| fs::read_to_string(entry.path().join("size")).ok());
    sizes.filter_map(|size| kib(&size)).max().unwrap_or(0)
}

/// Bytes of a size such as `32768K`.
fn kib(size: &str) -> Option<u64> {
    size.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

fn sort_fastest_first(cores: &mut [Core]) {
    cores.sort_by_key(|core| (std::cmp::Reverse(core.capacity), core.cpu));
}

/// CPU time that all cores of this machine have spent on anything but idling, since the machine started.
///
/// Computed from the idle time, which is measured. The kernel samples the rest at each tick, and misses work that ends
/// before the next tick.
pub fn busy_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let mut busy = Duration::ZERO;
    // The first line sums all cores that ever were online; each line after it is a core.
    for line in text.lines().skip(1).take_while(|line| line.starts_with("cpu")) {
        let mut fields = line.split_whitespace().skip(4).map(str::parse::<u64>);
        let (idle, waiting) = (fields.next()?.ok()?, fields.next()?.ok()?);
        // The unit is 1/100 s on every architecture.
        let idle = Duration::from_millis((idle + waiting) * 10);
        busy += Duration::try_from_secs_f64(seconds).ok()?.saturating_sub(idle);
    }
    Some(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_in_kib() {
        assert_eq!(kib("32768K\n"), Some(32 << 20));
        assert_eq!([kib("32"), kib("K"), kib("-1K"), kib("99999999999999999999K")], [None; 4]);
    }

    #[test]
    fn there_is_a_core() {
        assert!(!cores().is_empty());
    }

    #[test]
    fn threads_beyond_the_quota_are_not_started() {
        assert_eq!(bounded(vec![4, 5, 6, 7], Some(2)), [4, 5]);
        assert_eq!(bounded(vec![4, 5], Some(8)), [4, 5]);
        assert_eq!(bounded(vec![4, 5], Some(0)), [4]);
        assert_eq!(bounded(vec![4, 5], None), [4, 5]);
    }

    #[test]
    fn busy_time_passes_as_this_thread_works() {
        let (start, before) = (std::time::Instant::now(), busy_time().unwrap());
        while start.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        assert!(busy_time().unwrap() > before);
    }

    #[test]
    fn a_pinned_thread_still_sees_every_core() {
        let before = cores();
        std::thread::spawn(move || {
            pin_current_thread(before[0].cpu);
            assert_eq!(cores(), before);
            unpin_current_thread();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn big_cores_come_first_and_little_ones_are_left_out() {
        let mut cores: Vec<Core> = [(0, 530), (1, 530), (2, 1024), (3, 1000)]
            .map(|(cpu, capacity)| Core { cpu, capacity })
            .into();
        sort_fastest_first(&mut cores);
        assert_eq!(cores[0].cpu, 2);
        assert_eq!(fast_cores(&cores), [2, 3]);
    }
}
