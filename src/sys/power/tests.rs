//! Sensors simulated by trees of files, and the totals of their samples.

use std::f64::consts::PI;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::shared::Shared;
use super::*;
use crate::sys::tree::Tree;

/// A made-up machine: its files, and nothing else.
struct Board(PathBuf);

impl Board {
    fn new(name: &str, files: &[(&str, &str)]) -> Board {
        let root = std::env::temp_dir().join(format!("leap-power-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let board = Board(root);
        files.iter().for_each(|(path, text)| board.write(path, text));
        board
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn sensor(&self) -> Option<Sensor> {
        Sensor::find(&Tree::new(&self.0))
    }

    /// Energy over 20 s with power `watts(s)` at second `s`, which `write` puts into the files.
    fn play(&self, watts: impl Fn(f64) -> f64, mut write: impl FnMut(&Board, f64)) -> f64 {
        write(self, watts(0.0));
        let mut sensor = self.sensor().unwrap();
        let (start, mut totals) = (Instant::now(), Totals::default());
        for step in 0..=200 {
            let seconds = f64::from(step) / 10.0;
            write(self, watts(seconds));
            totals.add(start + Duration::from_secs_f64(seconds), sensor.sample().unwrap());
        }
        totals.reading().unwrap().joules
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Power that comes and goes within 2 s, and its integral over 20 s.
fn waves(seconds: f64) -> f64 {
    6.0 + 4.0 * (PI * seconds).sin()
}
const WAVES_JOULES: f64 = 120.0;

fn is_within_a_hundredth(joules: f64) -> bool {
    (joules / WAVES_JOULES - 1.0).abs() < 0.01
}

const NANO: &[(&str, &str)] = &[
    ("sys/class/hwmon/hwmon0/name", "ina3221\n"),
    ("sys/class/hwmon/hwmon0/in1_label", "VDD_IN\n"),
    ("sys/class/hwmon/hwmon0/in1_input", "5000\n"),
    ("sys/class/hwmon/hwmon0/curr1_input", "1000\n"),
    ("sys/class/hwmon/hwmon0/in2_label", "VDD_CPU_GPU_CV\n"),
    ("sys/class/hwmon/hwmon0/in2_input", "5000\n"),
    ("sys/class/hwmon/hwmon0/curr2_input", "400\n"),
    ("sys/class/hwmon/hwmon0/in7_input", "9\n"),
    ("sys/class/hwmon/hwmon0/curr7_input", "9\n"),
];

#[test]
fn an_ina3221_adds_up_to_the_rail_that_all_hang_on() {
    let board = Board::new("ina3221", NANO);
    assert_eq!(board.sensor().unwrap().name(), "INA3221 VDD_IN");
    let joules = board.play(waves, |board, watts| {
        let text = format!("{}\n", (watts * 200.0).round());
        board.write("sys/class/hwmon/hwmon0/curr1_input", &text);
    });
    assert!(is_within_a_hundredth(joules), "{joules}");
}

#[test]
fn rails_of_several_chips_are_added_without_those_that_are_not_connected() {
    let board = Board::new("agx", &[]);
    for (chip, channel, label) in
        [(1, 1, "VDD_GPU_SOC"), (1, 2, "VDD_CPU_CV"), (1, 3, "NC"), (2, 1, "VDDQ_VDD2_1V8AO")]
    {
        let device = format!("sys/class/hwmon/hwmon{chip}");
        board.write(&format!("{device}/name"), "ina3221\n");
        board.write(&format!("{device}/in{channel}_label"), label);
        board.write(&format!("{device}/in{channel}_input"), "10000");
        board.write(&format!("{device}/curr{channel}_input"), "100");
    }
    // Without current, the chip reads slightly below zero.
    board.write("sys/class/hwmon/hwmon1/curr2_input", "-8");
    let mut sensor = board.sensor().unwrap();
    assert_eq!(sensor.name(), "INA3221, 3 rails");
    assert_eq!(sensor.sample(), Some(Sample::Watts(1.92)));
    board.write("sys/class/hwmon/hwmon1/in2_enable", "0");
    assert_eq!(board.sensor().unwrap().name(), "INA3221, 2 rails");
}

#[test]
fn jetpack_4_says_milliwatts() {
    let chip = "sys/bus/i2c/devices/6-0040";
    let board = Board::new("jetpack4", &[]);
    board.write(&format!("{chip}/name"), "ina3221x\n");
    board.write(&format!("{chip}/iio:device0/rail_name_0"), "POM_5V_IN\n");
    board.write(&format!("{chip}/iio:device0/rail_name_1"), "POM_5V_GPU\n");
    board.write(&format!("{chip}/iio:device0/in_power1_input"), "700\n");
    let joules = board.play(waves, |board, watts| {
        let text = format!("{}\n", (watts * 1e3).round());
        board.write(&format!("{chip}/iio:device0/in_power0_input"), &text);
    });
    assert_eq!(board.sensor().unwrap().name(), "INA3221 POM_5V_IN");
    assert!(is_within_a_hundredth(joules), "{joules}");
}

/// A processor whose counter wraps after 50 J.
const N150: &[(&str, &str)] = &[
    ("sys/class/powercap/intel-rapl:0/name", "package-0\n"),
    ("sys/class/powercap/intel-rapl:0/energy_uj", "49000000\n"),
    ("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "50000000\n"),
    ("sys/class/powercap/intel-rapl:0:0/name", "core\n"),
    ("sys/class/powercap/intel-rapl:0:0/energy_uj", "7\n"),
    ("sys/class/powercap/intel-rapl-mmio:0/name", "package-0\n"),
    ("sys/class/powercap/intel-rapl-mmio:0/energy_uj", "7\n"),
];

#[test]
fn counters_of_rapl_begin_anew_without_a_trace() {
    let board = Board::new("rapl", N150);
    let mut counted = 49.0;
    let joules = board.play(waves, |board, watts| {
        counted += watts / 10.0;
        let text = format!("{}\n", (counted % 50.0 * 1e6) as u64);
        board.write("sys/class/powercap/intel-rapl:0/energy_uj", &text);
    });
    assert!(counted > 150.0 && is_within_a_hundredth(joules), "{joules}");
}

#[test]
fn a_counter_that_cannot_be_is_a_gap() {
    let board = Board::new("rapl-odd", N150);
    let mut sensor = board.sensor().unwrap();
    for text in ["60000000", "x", "-1", "99999999999999999999", ""] {
        board.write("sys/class/powercap/intel-rapl:0/energy_uj", "60000000");
        sensor.sample();
        board.write("sys/class/powercap/intel-rapl:0/energy_uj", text);
        let sample = sensor.sample();
        assert_eq!(sample.is_none(), text != "60000000", "{text}");
        board.write("sys/class/powercap/intel-rapl:0/energy_uj", "5");
        // The count before is beyond its range, or there is none.
        let wanted = (text != "60000000").then_some(Sample::Joules(0.0));
        assert_eq!(sensor.sample(), wanted, "{text}");
    }
    // A jump that would be half a megawatt.
    let mut totals = Totals::default();
    let start = Instant::now();
    totals.add(start, Sample::Joules(0.0));
    totals.add(start + Duration::from_secs(1), Sample::Joules(5e5));
    assert!(totals.reading().is_none());
}

const PI_5: &str = "proc/device-tree/compatible";
const ANSWER: &str = " 3V7_WL_SW_A current(0)=0.00000000A
   3V3_SYS_A current(1)=0.06245952A
   1V8_SYS_A current(2)=0.16102850A
  DDR_VDD2_A current(3)=0.00780744A
  DDR_VDDQ_A current(4)=0.00000000A
   1V1_SYS_A current(5)=0.17566740A
    0V8_SW_A current(6)=0.32791250A
  VDD_CORE_A current(7)=2.00000000A
   3V3_DAC_A current(17)=0.00036630A
   3V3_ADC_A current(18)=0.00042735A
   0V8_AON_A current(16)=0.00579975A
      HDMI_A current(22)=0.01367520A
 3V7_WL_SW_V volt(8)=3.79999600V
   3V3_SYS_V volt(9)=3.30632200V
   1V8_SYS_V volt(10)=1.79828900V
  DDR_VDD2_V volt(11)=1.10292900V
  DDR_VDDQ_V volt(12)=0.60476130V
   1V1_SYS_V volt(13)=1.10439400V
    0V8_SW_V volt(14)=0.80256330V
  VDD_CORE_V volt(15)=0.90000000V
   3V3_DAC_V volt(20)=3.30494200V
   3V3_ADC_V volt(21)=3.30219400V
   0V8_AON_V volt(19)=0.79736190V
      HDMI_V volt(23)=5.07056000V
     EXT5V_V volt(24)=5.06788000V
      BATT_V volt(25)=3.01110800V
";

#[test]
fn the_pmic_of_a_raspberry_pi_5_tells_what_the_board_takes() {
    let compatible = "raspberrypi,5-model-b\0brcm,bcm2712\0";
    let board = Board::new("pi5", &[(PI_5, compatible), ("dev/vcio", ANSWER)]);
    let joules = board.play(waves, |board, watts| {
        // The other eleven rails take 1.0385 W.
        let rails = (watts - 0.5879) / 1.1451;
        let core = format!("current(7)={:.8}A", (rails - 1.038_463) / 0.9);
        board.write("dev/vcio", &ANSWER.replace("current(7)=2.00000000A", &core));
    });
    assert!(is_within_a_hundredth(joules), "{joules}");
    for (from, to) in [
        ("current(7)=2.00000000A", "current(7)=-2.0A"),
        ("current(7)=2.00000000A", "current(7)=1e9A"),
        ("current(7)=2.00000000A", "current(7)=nanA"),
        ("volt(15)=0.90000000V", "volt(15)=0.9"),
        ("HDMI_V", "HDMJ_V"),
    ] {
        board.write("dev/vcio", &ANSWER.replace(from, to));
        assert!(board.sensor().is_none(), "{to}");
    }
    let other = Board::new("pi4", &[(PI_5, "raspberrypi,4-model-b\0"), ("dev/vcio", ANSWER)]);
    assert!(other.sensor().is_none());
}

#[test]
fn other_devices_say_microwatts() {
    let board = Board::new(
        "hwmon",
        &[
            ("sys/class/hwmon/hwmon0/name", "amdgpu\n"),
            ("sys/class/hwmon/hwmon0/power1_average", "90000000\n"),
            ("sys/class/hwmon/hwmon1/name", "ina226\n"),
            ("sys/class/hwmon/hwmon1/power1_input", "6000000\n"),
        ],
    );
    let joules = board.play(waves, |board, watts| {
        let text = format!("{}\n", (watts * 1e6).round());
        board.write("sys/class/hwmon/hwmon1/power1_input", &text);
    });
    assert_eq!(board.sensor().unwrap().name(), "hwmon ina226");
    assert!(is_within_a_hundredth(joules), "{joules}");
    board.write("sys/class/hwmon/hwmon2/name", "power_meter\n");
    board.write("sys/class/hwmon/hwmon2/power1_average", "20000000\n");
    assert_eq!(board.sensor().unwrap().sample(), Some(Sample::Watts(20.0)));
}

#[test]
fn what_is_no_power_is_no_figure() {
    let file = "sys/class/hwmon/hwmon0/curr1_input";
    let board = Board::new("hostile", NANO);
    let mut sensor = board.sensor().unwrap();
    for text in ["", "x", "-5000", "1e3", "99999999999999999999", "100001", "9223372036854775807"] {
        board.write(file, text);
        assert_eq!(sensor.sample(), None, "{text}");
        assert!(board.sensor().is_none(), "{text}");
    }
    fs::write(board.0.join(file), b"10\xff0").unwrap();
    assert_eq!(sensor.sample(), None);
    fs::remove_file(board.0.join(file)).unwrap();
    assert_eq!(sensor.sample(), None);
    fs::create_dir(board.0.join(file)).unwrap();
    assert_eq!(sensor.sample(), None);
    fs::remove_dir(board.0.join(file)).unwrap();
    nix::unistd::mkfifo(&board.0.join(file), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(sensor.sample(), None);
    assert!(Board::new("none", &[]).sensor().is_none());
}

#[test]
fn a_sensor_that_vanishes_takes_its_figures_with_it() {
    let file = "sys/class/hwmon/hwmon0/curr1_input";
    let board = Board::new("vanishes", NANO);
    let meter = Meter::start(PowerSource::Sensor(board.sensor().unwrap())).unwrap();
    meter.set_working(true);
    let before = meter.read().unwrap();
    assert_eq!(before.watts, Some(5.0));
    let spent = meter.read().unwrap().since(&before).unwrap();
    assert!((spent.watts() - 5.0).abs() < 1e-6);
    fs::remove_file(board.0.join(file)).unwrap();
    assert!(meter.read().is_none() && meter.latest().is_none());
    board.write(file, "2000");
    let after = meter.read().unwrap();
    assert_eq!(after.watts, Some(10.0));
    assert_eq!(after.since(&before), None);
}

#[test]
fn a_node_tells_what_it_spends_without_waiting() {
    let file = "sys/class/hwmon/hwmon0/curr1_input";
    let board = Board::new("node", NANO);
    let meter = Meter::start(PowerSource::Sensor(board.sensor().unwrap())).unwrap();
    let before = meter.read().unwrap();
    let mut told = vec![meter.compute(true).unwrap()];
    let mut tell = |times: usize| {
        for _ in 0..times {
            std::thread::sleep(Duration::from_millis(1));
            told.push(meter.compute(false).unwrap());
        }
    };
    tell(20);
    board.write(file, "0");
    tell(150);
    assert!(told.is_sorted(), "{told:?}");
    let spent = meter.read().unwrap().since(&before).unwrap();
    // Until the first sample of zero, the power is assumed to stay as before.
    assert!(spent.watts() < 5.0 && *told.last().unwrap() > before.joules, "{spent:?}");
}

#[test]
fn a_sensor_that_never_answers_is_not_waited_for_twice() {
    let shared = Shared::start(|shared| {
        while !shared.is_ending() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let shared = shared.unwrap();
    assert!(shared.read("x").is_none());
    assert!((0..1000).all(|_| shared.read("x").is_none()));
    shared.end();
}

#[test]
fn a_command_tells_watts_a_line_or_a_run_each() {
    for command in ["while sleep 0.01; do echo 12.5 W; done", "echo 12.5"] {
        let meter = Meter::start(PowerSource::Command(command.to_owned())).unwrap();
        let before = meter.read().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let spent = meter.read().unwrap().since(&before).unwrap();
        assert!((spent.watts() - 12.5).abs() < 0.125, "{command}: {spent:?}");
    }
    for command in ["echo much", "exit 1", "echo -1", "echo inf", "cat /dev/zero", "echo 1e9"] {
        let meter = Meter::start(PowerSource::Command(command.to_owned())).unwrap();
        assert!(meter.read().is_none(), "{command}");
    }
}

#[test]
fn what_is_stated_follows_the_work() {
    let meter = Meter::start(PowerSource::Stated { idle: 2.0, busy: 8.0 }).unwrap();
    let idle = meter.read().unwrap();
    assert_eq!(idle.watts, Some(2.0));
    meter.set_working(true);
    let start = meter.read().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let end = meter.read().unwrap();
    assert!((end.since(&start).unwrap().watts() - 8.0).abs() < 1e-6);
    let working = end.working_joules - start.working_joules;
    assert!((working - (end.joules - start.joules)).abs() < 1e-9 && start.working_joules < 1.0);
    meter.set_working(false);
    assert_eq!(meter.read().unwrap().watts, Some(2.0));
}
