use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;

use super::*;
use crate::sys::cpu::Core;

/// A made-up machine that has only these files.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Machine {
        let root = std::env::temp_dir().join(format!("leap-doctor-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(&root).unwrap();
        Machine(root)
    }

    fn tree(&self) -> Tree {
        Tree::new(&self.0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn states(findings: &[Finding]) -> Vec<FindingState> {
    findings.iter().map(|finding| finding.state).collect()
}

fn mends(findings: &[Finding]) -> Vec<&str> {
    findings.iter().filter_map(|finding| finding.mend.as_deref()).collect()
}

#[test]
fn governors_that_save_power_are_named_with_their_files() {
    let machine = Machine::new(
        "governor",
        &[
            ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "ondemand\n"),
            ("sys/devices/system/cpu/cpufreq/policy4/scaling_governor", "performance\n"),
            ("sys/class/devfreq/dmc/governor", "dmc_ondemand\n"),
            ("sys/class/devfreq/fb000000.gpu/governor", "simple_ondemand\n"),
        ],
    );
    let findings = cores::governors(&machine.tree());
    assert_eq!(states(&findings), [FindingState::Slow, FindingState::Slow]);
    assert_eq!(
        mends(&findings),
        [
            "echo performance | sudo tee /sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
            "echo performance | sudo tee /sys/class/devfreq/dmc/governor",
        ]
    );
    let machine = Machine::new("no-governor", &[]);
    assert_eq!(states(&cores::governors(&machine.tree())), [FindingState::Good]);
}

#[test]
fn cores_are_told_by_tier_and_those_switched_off_by_number() {
    let machine = Machine::new(
        "cores",
        &[
            ("sys/devices/system/cpu/present", "0-7\n"),
            ("sys/devices/system/cpu/offline", "6-7,9-4294967295,x\n"),
        ],
    );
    let big = (4..6).map(|cpu| Core { cpu, capacity: 1024 });
    let little = (0..4).map(|cpu| Core { cpu, capacity: 530 });
    let all: Vec<Core> = big.chain(little).collect();
    let findings = cores::cores(&machine.tree(), &all, &Kernels::best());
    assert!(findings[0].text.starts_with("2 cores of speed 1024 and 4 cores of speed 530, "));
    assert_eq!(findings[1].text, "2 cores are switched off, the first is 6");
    assert_eq!(mends(&findings[1..]), ["echo 1 | sudo tee /sys/devices/system/cpu/cpu6/online"]);
}

#[test]
fn a_quota_of_cpu_time_is_told() {
    let group = ("proc/self/cgroup", "0::/box\n");
    let quota = ("sys/fs/cgroup/box/cpu.max", "250000 100000\n");
    let machine = Machine::new("quota", &[group, quota]);
    let cores: Vec<Core> = (0..4).map(|cpu| Core { cpu, capacity: 1024 }).collect();
    let findings = cores::cores(&machine.tree(), &cores, &Kernels::best());
    let told = "its control group leaves the time of 2 of 4 cores: as many threads by default";
    assert_eq!(findings[1].text, told);
    assert_eq!(cores::cores(&machine.tree(), &cores[..2], &Kernels::best()).len(), 1);
}

#[test]
fn clock_and_huge_pages_are_judged() {
    const SOURCE: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let now = 1_800_000_000;
    let clock = |source, now| {
        let machine = Machine::new("clock", &[(SOURCE, source)]);
        states(&cores::clock(&machine.tree(), now))
    };
    assert_eq!(clock("arch_sys_counter", now), [FindingState::Good]);
    assert_eq!(clock("hpet", now), [FindingState::Slow]);
    assert_eq!(clock("tsc", 0), [FindingState::Good, FindingState::Slow]);

    let pages = |modes| {
        let file = "sys/kernel/mm/transparent_hugepage/enabled";
        cores::huge_pages(&Machine::new("pages", &[(file, modes)]).tree()).state
    };
    assert_eq!(pages("always [madvise] never"), FindingState::Good);
    assert_eq!(pages("always madvise [never]"), FindingState::Slow);
}

#[test]
fn module_is_followed_from_missing_to_usable() {
    const ADMIN: (&str, &str) = ("proc/self/status", "Name:\tleap\nCapEff:\t0000000000001000\n");
    let release = ("proc/sys/kernel/osrelease", "6.1.0-test\n");
    let installed = ("lib/modules/6.1.0-test/updates/dkms/leap_transport.ko.xz", "");
    let loaded = ("sys/module/leap_transport/version", concat!(env!("CARGO_PKG_VERSION"), "\n"));
    let device = ("dev/leap_tensor", "");
    let mend = |name, files: &[(&str, &str)]| {
        let finding = link::module(&Machine::new(name, files).tree());
        (finding.state, finding.mend.unwrap_or_default())
    };
    assert!(mend("m0", &[]).1.starts_with("sudo apt install ./leap-dkms_"), "no repository has it");
    assert_eq!(mend("m1", &[release, installed]).1, "sudo modprobe leap_transport");
    assert!(mend("m2", &[loaded]).1.starts_with("sudo udevadm trigger"));
    assert!(mend("m3", &[loaded, device]).1.contains("setcap"));
    assert_eq!(mend("m4", &[loaded, device, ADMIN]), (FindingState::Good, String::new()));
    let old = ("sys/module/leap_transport/version", "0.0.1\n");
    assert!(mend("m5", &[old, device, ADMIN]).1.starts_with("sudo modprobe -r"));
}

#[test]
fn network_devices_are_judged_by_what_a_hop_costs() {
    let device = |name: &str, settings: &[(&str, &str)]| {
        let folder = "sys/class/net/eth0";
        let mut files = vec![
            ("sys/class/net/lo/operstate".to_owned(), "up"),
            (format!("{folder}/device/uevent"), ""),
            (format!("{folder}/operstate"), "up\n"),
        ];
        files.extend(settings.iter().map(|(file, text)| (format!("{folder}/{file}"), *text)));
        let files: Vec<(&str, &str)> = files.iter().map(|(f, t)| (f.as_str(), *t)).collect();
        link::devices(&Machine::new(name, &files).tree())
    };
    let judged = |name, settings| states(&device(name, settings));
    assert_eq!(judged("n0", &[("mtu", "1500"), ("speed", "1000")]), [FindingState::Good]);
    assert_eq!(judged("n1", &[("mtu", "1500"), ("speed", "-1")]), [FindingState::Good]);
    assert_eq!(judged("n2", &[("mtu", "1280"), ("speed", "100")]), [FindingState::Slow]);
    assert_eq!(judged("n3", &[("mtu", "1500"), ("wireless/x", "")]), [FindingState::Slow]);
    assert_eq!(judged("n4", &[("operstate", "down")]), [FindingState::Slow]);
    let narrow = device("n5", &[("mtu", "1280"), ("speed", "1000")]);
    assert_eq!(
        narrow,
        [Finding::good("network", "eth0 is up at 1000 Mbit/s, in packets of 1280 bytes")]
    );
}

#[test]
fn small_socket_buffers_are_told() {
    let machine = Machine::new(
        "buffers",
        &[("proc/sys/net/core/rmem_max", "212992"), ("proc/sys/net/core/wmem_max", "8388608")],
    );
    let findings = link::buffers(&machine.tree());
    assert_eq!(mends(&findings), ["sudo sysctl -w net.core.rmem_max=4194304"]);
}

#[test]
fn a_used_port_is_reported_with_its_program() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    assert_eq!(link::port(&Tree::new(Path::new("/")), port).state, FindingState::Bad);

    let line = format!("  1: 00000000:{port:04X} 00000000:0000 07 0:0 00:0 0 0 0 77 2 0 0\n");
    let files = [("proc/net/udp", line.as_str()), ("proc/12/comm", "leap\n"), ("proc/12/fd/x", "")];
    let machine = Machine::new("port", &files);
    std::os::unix::fs::symlink("socket:[77]", machine.0.join("proc/12/fd/3")).unwrap();
    assert_eq!(link::port(&machine.tree(), port).text, format!("{port} is used by LEAP"));
    fs::write(machine.0.join("proc/12/comm"), "\x1b[31mevil\n").unwrap();
    let finding = link::port(&machine.tree(), port);
    assert_eq!((finding.state, finding.text.contains('\x1b')), (FindingState::Bad, false));
}

#[cfg(feature = "demo")]
#[test]
fn memory_is_measured_against_model_and_context() {
    let path = Path::new("models/demo.bin");
    let engine = open(path).ok().unwrap();
    let demo = engine.model();
    let memory = |free_kib: u64, ctx| {
        let text = format!("MemTotal: 1048576 kB\nMemAvailable: {free_kib} kB\n");
        let machine = Machine::new("memory", &[("proc/meminfo", text.as_str())]);
        let file_bytes = fs::metadata(path).unwrap().len();
        model::memory(
            &machine.tree(),
            Some(model::WantedModel { model: demo, file_bytes, ctx_len: ctx }),
        )
    };
    let max = demo.header().max_seq_len;
    assert_eq!(memory(1 << 20, max).state, FindingState::Good);
    assert_eq!(memory(1000, max).state, FindingState::Bad);
    assert!(memory(u64::MAX / 2048, max + 1).mend.unwrap().starts_with("--ctx "));
    let limited = Machine::new(
        "group",
        &[
            ("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n"),
            ("proc/self/cgroup", "0::/board.slice\n"),
            ("sys/fs/cgroup/board.slice/memory.max", "104857600\n"),
            ("sys/fs/cgroup/board.slice/memory.current", "4194304\n"),
        ],
    );
    let finding = model::memory(&limited.tree(), None);
    assert_eq!(finding.text, "96 MiB of 4096 MiB free, as its control group leaves");
    let odd = Machine::new("meminfo", &[("proc/meminfo", "MemTotal: x\nMemAvailable: -1 kB")]);
    assert_eq!(model::memory(&odd.tree(), None).state, FindingState::Bad);
}

#[cfg(feature = "demo")]
#[test]
fn cache_is_judged_by_what_is_in_the_file() {
    let machine = Machine::new("cache", &[("bad.leapw", "LEAW")]);
    let model = Path::new("it's.bin");
    let engine = open(Path::new("models/demo.bin")).ok().unwrap();
    let cache = |path: Option<&Path>| model::cache(&engine, model, path);
    assert_eq!(cache(None).state, FindingState::Good);
    let bad = cache(Some(&machine.0.join("bad.leapw")));
    assert!(bad.text.contains("damaged"), "{}", bad.text);
    assert_eq!(bad.mend.as_deref(), Some("leap pack 'it'\\''s.bin'"));
    assert!(cache(Some(&machine.0.join("new.leapw"))).text.contains("not there"));
    assert_eq!(cache(Some(Path::new("/no/such/folder/x.leapw"))).state, FindingState::Slow);
}

#[test]
fn one_thread_reads() {
    let text = |threads| model::bandwidth(1e9, threads, None).text;
    assert_eq!(text(1), "1 thread reads 1.0 GB/s");
    assert_eq!(text(2), "2 threads read 1.0 GB/s");
}

#[test]
fn heat_is_told_and_what_it_slows_down() {
    let zone = "sys/class/thermal/thermal_zone0";
    let board = |degrees: &str| {
        let machine = Machine::new(
            "heat",
            &[
                (&format!("{zone}/type"), "cpu-thermal\n"),
                (&format!("{zone}/temp"), degrees),
                (&format!("{zone}/trip_point_0_type"), "critical\n"),
                (&format!("{zone}/trip_point_0_temp"), "110000\n"),
                (&format!("{zone}/trip_point_1_type"), "passive\n"),
                (&format!("{zone}/trip_point_1_temp"), "80000\n"),
                ("sys/class/thermal/thermal_zone1/temp", "999999999\n"),
            ],
        );
        power::heat(&machine.tree())
    };
    let cool = board("45123\n");
    assert_eq!(cool[0].text, "45.1 °C at most (cpu-thermal)");
    let hot = board("80000\n");
    assert_eq!(hot[0].text, "cpu-thermal has 80.0 °C: from 80.0 °C on the system lowers clocks");
    assert_eq!((states(&cool)[0], states(&hot)[0]), (FindingState::Good, FindingState::Slow));
    assert!(board("x").is_empty());

    let machine = Machine::new(
        "capped",
        &[
            ("sys/class/thermal/cooling_device0/type", "Fan\n"),
            ("sys/class/thermal/cooling_device0/cur_state", "3\n"),
            ("sys/class/thermal/cooling_device1/type", "cpufreq-cpu0\n"),
            ("sys/class/thermal/cooling_device1/cur_state", "2\n"),
            ("sys/class/thermal/cooling_device1/max_state", "9\n"),
            ("sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq", "2400000\n"),
            ("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "1500000\n"),
            ("sys/devices/system/cpu/cpufreq/policy4/cpuinfo_max_freq", "2400000\n"),
            ("sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq", "2400000\n"),
        ],
    );
    let findings = power::heat(&machine.tree());
    assert_eq!(findings[0].text, "cpufreq-cpu0 is slowed down, step 2 of 9");
    assert_eq!(findings[1].text, "policy0 may run at 1.50 of 2.40 GHz");
    assert_eq!(findings.len(), 2);
}

#[test]
fn the_sensor_of_power_is_named_with_what_it_says() {
    let machine = Machine::new(
        "power",
        &[
            ("sys/class/hwmon/hwmon3/name", "ina3221\n"),
            ("sys/class/hwmon/hwmon3/in1_label", "VDD_IN\n"),
            ("sys/class/hwmon/hwmon3/in1_input", "4900\n"),
            ("sys/class/hwmon/hwmon3/curr1_input", "1000\n"),
        ],
    );
    assert_eq!(power::sensor(&machine.tree()).text, "INA3221 VDD_IN: 4.9 W");
    let none = power::sensor(&Machine::new("no-power", &[]).tree());
    assert!(none.state == FindingState::Good && none.text.contains("--power-cmd"), "{none:?}");
}

#[test]
fn findings_are_shown_to_people_and_programs() {
    let finding = Finding::slow("governor", "is \"x\"", "echo y");
    assert_eq!(finding.as_text(), "slow governor   is \"x\"\n                -> echo y\n");
    assert_eq!(
        finding.as_json(),
        "{\"what\": \"governor\", \"state\": \"slow\", \"text\": \"is \\\"x\\\"\", \"mend\": \"echo y\"}\n"
    );
    assert!(!Finding::good("a", "b").as_json().contains("mend"));
}

#[test]
fn a_servers_address_is_free_or_leaps() {
    let machine = Machine::new("listen", &[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let found = server::address(&machine.tree(), &place);
    assert_eq!(found.state, FindingState::Bad);
    assert!(found.text.contains("is used by another program"), "{}", found.text);
    // /proc tells the program's name.
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    let found = server::address(&Tree::new(Path::new("/")), &place);
    assert!(found.text.ends_with(&format!("is used by {}", name.trim())), "{}", found.text);
    drop(taken);
    assert_eq!(server::address(&machine.tree(), &place).state, FindingState::Good);
    for place in ["nonsense", "192.0.2.1:8080", "/no/such/folder/socket"] {
        assert_eq!(server::address(&machine.tree(), place).state, FindingState::Bad, "{place}");
    }
}

#[test]
fn keys_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new("keys", &[("keys", "secret\n")]);
    let path = machine.0.join("keys");
    for (mode, state) in
        [(0o600, FindingState::Good), (0o400, FindingState::Good), (0o640, FindingState::Bad)]
    {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(server::key_file(&path).state, state, "{mode:o}");
    }
    assert_eq!(server::key_file(&machine.0.join("none")).state, FindingState::Bad);
}
