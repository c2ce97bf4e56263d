//! How a ring's frames travel: the values of `--transport` and `--wire`, and what they open.

use std::thread;
use std::time::{Duration, Instant};

use crate::cli::{Failure, note, warn};
use crate::fleet::interrupt::is_interrupted;
use crate::transport::kmod::Kmod;
use crate::transport::options::CarrierOptions;
use crate::transport::tcp::Tcp;
use crate::transport::udp::Udp;
use crate::transport::{Endpoint, TransportError};
use crate::wire::Dtype;

/// How often the name of this board is looked up until it has an address.
const NAME_EVERY: Duration = Duration::from_millis(500);

/// The way of frames: the kernel module, datagrams or streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum CarrierKind {
    Auto,
    Kernel,
    Udp,
    Tcp,
}

/// `auto`, `kernel`, `udp` or `tcp`.
pub(in crate::cli) fn parse(value: &str) -> Result<CarrierKind, String> {
    match value {
        "auto" => Ok(CarrierKind::Auto),
        "kernel" => Ok(CarrierKind::Kernel),
        "udp" => Ok(CarrierKind::Udp),
        "tcp" => Ok(CarrierKind::Tcp),
        _ => Err(format!("{value:?} is none of auto, kernel, udp and tcp")),
    }
}

/// `f16` or `f32`.
pub(in crate::cli) fn wire(value: &str) -> Result<Dtype, String> {
    match value {
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        _ => Err(format!("{value:?} is neither f16 nor f32")),
    }
}

/// Opens the links. If the name of this board has no address yet, as may be when boards start, waits for one.
pub(in crate::cli) fn open(
    carrier: CarrierKind,
    options: &CarrierOptions,
    is_quiet: bool,
    patience: Option<Duration>,
) -> Result<Box<dyn Endpoint>, Failure> {
    let (start, mut is_told) = (Instant::now(), false);
    loop {
        let error = match open_once(carrier, options.clone(), is_quiet || is_told) {
            Err(error @ TransportError::Resolve { .. }) if options.listen.is_name() => error,
            result => return result.map_err(|e| Failure::runtime(&e)),
        };
        let is_over = patience.is_some_and(|patience| start.elapsed() > patience);
        if is_over || is_interrupted() {
            return Err(Failure::runtime(&error));
        }
        if !std::mem::replace(&mut is_told, true) {
            warn(&format!("{error}, and goes on trying"));
        }
        thread::sleep(NAME_EVERY);
    }
}

fn open_once(
    carrier: CarrierKind,
    options: CarrierOptions,
    is_quiet: bool,
) -> Result<Box<dyn Endpoint>, TransportError> {
    match carrier {
        CarrierKind::Tcp => Tcp::open(options).map(|tcp| Box::new(tcp) as _),
        CarrierKind::Udp => Udp::open(options).map(|udp| Box::new(udp) as _),
        CarrierKind::Kernel => Kmod::open(options).map(|kmod| Box::new(kmod) as _),
        CarrierKind::Auto => match Kmod::open(options.clone()) {
            Err(TransportError::Kernel { source }) => {
                if !is_quiet {
                    note(&format!("leap: using udp: {source}"));
                }
                Udp::open(options).map(|udp| Box::new(udp) as _)
            }
            other => other.map(|kmod| Box::new(kmod) as _),
        },
    }
}
