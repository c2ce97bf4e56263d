//! The power management chip of the Raspberry Pi 5, which the firmware asks (`vcgencmd pmic_read_adc`).

use std::fs::File;
use std::os::fd::AsRawFd;

use bytemuck::cast_slice_mut;

use crate::sys::tree::Tree;

const MAILBOX: &str = "dev/vcio";
/// `_IOWR(100, 0, char *)` of the firmware's driver.
const IOCTL_PROPERTY: u32 = 0xc000_6400 | (size_of::<*mut u8>() as u32) << 16;
/// The firmware's tag for a command in words; its answer replaces the command.
const TAG_COMMAND: u32 = 0x0003_0080;
const COMMAND: &[u8] = b"pmic_read_adc";
/// Bytes of a command or an answer; the chip's takes nine tenths of them.
const TEXT_BYTES: usize = 1024;
/// Words before the text: length and state of the message; tag, room, length and state of the text.
const HEAD_WORDS: usize = 6;

/// Rails of the chip whose current it measures.
const RAILS: [&str; 12] = [
    "3V7_WL_SW",
    "3V3_SYS",
    "1V8_SYS",
    "DDR_VDD2",
    "DDR_VDDQ",
    "1V1_SYS",
    "0V8_SW",
    "VDD_CORE",
    "3V3_DAC",
    "3V3_ADC",
    "0V8_AON",
    "HDMI",
];
/// Ratio of a board's power to that of its rails: a line through measurements of Raspberry Pi 5s with a meter
/// (github.com/jfikar/RPi5-power).
const BOARD_PER_RAILS: f64 = 1.1451;
const BOARD_WATTS: f64 = 0.5879;

/// The chip of a machine, or of a copy of the machine's files, where a file has the firmware's answer.
pub(super) struct Pmic {
    tree: Tree,
}

impl Pmic {
    pub(super) fn find(tree: &Tree) -> Option<Pmic> {
        has_one(tree).then(|| Pmic { tree: tree.clone() })
    }

    /// Whether there is a chip that this user may not ask.
    pub(super) fn is_locked(tree: &Tree) -> bool {
        let file = tree.path(MAILBOX);
        has_one(tree) && file.exists() && File::open(file).is_err()
    }

    /// Power of the whole board, in watts.
    pub(super) fn watts(&self) -> Option<f64> {
        let answer = match self.tree.is_this_machine() {
            true => ask(&File::open(self.tree.path(MAILBOX)).ok()?)?,
            false => self.tree.text(MAILBOX)?,
        };
        let rails: f64 = RAILS.iter().map(|rail| rail_watts(&answer, rail)).sum::<Option<f64>>()?;
        Some(BOARD_PER_RAILS * rails + BOARD_WATTS)
    }
}

/// Whether the board's power follows from this chip: other boards with it differ in what its rails do not supply.
fn has_one(tree: &Tree) -> bool {
    let compatible = tree.text("proc/device-tree/compatible");
    compatible.is_some_and(|names| names.contains("raspberrypi,5-model-b"))
}

/// Power of a rail: `VDD_CORE_A current(7)=0.75012000A` times `VDD_CORE_V volt(15)=0.72000000V`.
fn rail_watts(answer: &str, rail: &str) -> Option<f64> {
    let value = |unit: char, most: f64| {
        let line = answer.lines().find_map(|line| {
            let rest = line.trim_start().strip_prefix(rail)?.strip_prefix('_')?;
            rest.strip_prefix(unit)?.strip_prefix(' ')
        });
        let number = line?.split_once('=')?.1.trim_end().strip_suffix(unit)?;
        number.parse::<f64>().ok().filter(|value| (0.0..=most).contains(value))
    };
    Some(value('A', 100.0)? * value('V', 30.0)?)
}

/// Makes the firmware carry out [`COMMAND`]. Returns its answer.
fn ask(mailbox: &File) -> Option<String> {
    let mut message = [0_u32; HEAD_WORDS + TEXT_BYTES / 4 + 1];
    message[0] = size_of_val(&message) as u32;
    message[2] = TAG_COMMAND;
    message[3] = TEXT_BYTES as u32;
    let text: &mut [u8] = cast_slice_mut(&mut message[HEAD_WORDS..]);
    text[..COMMAND.len()].copy_from_slice(COMMAND);
    // SAFETY: the descriptor is open, and the driver writes as many bytes as the first word of the message
    // says, which is its length.
    let result =
        unsafe { libc::ioctl(mailbox.as_raw_fd(), IOCTL_PROPERTY as _, message.as_mut_ptr()) };
    if result < 0 || message[5] != 0 {
        return None;
    }
    let text: &[u8] = bytemuck::cast_slice(&message[HEAD_WORDS..HEAD_WORDS + TEXT_BYTES / 4]);
    let text = text.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}
