//! Teams of threads over real sockets on this machine.

mod gathers;
mod hostile;
mod losses;
mod proxy;
mod releases;

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::group::Notice;
use crate::transport::Endpoint;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::transport::tcp::Tcp;
use crate::transport::udp::Udp;
use crate::wire::hello::{RingInfo, name};
use crate::wire::seal::Key;
use crate::wire::{Dtype, KvType};

type Open = fn(CarrierOptions) -> Box<dyn Endpoint>;

const UDP: Open = |options| Box::new(Udp::open(options).unwrap());
const TCP: Open = |options| Box::new(Tcp::open(options).unwrap());

/// Addresses of a team's nodes: an address of this process, and ports of this team.
#[derive(Clone, Copy)]
struct Places {
    n_nodes: usize,
    first_port: u16,
    /// Added to the port that a link goes to, as by a proxy in front of it.
    detour: u16,
    key: Option<u8>,
    open: Open,
}

/// Ports outside the system's ephemeral range.
static NEXT_PORT: AtomicU16 = AtomicU16::new(10_000);

impl Places {
    fn new(n_nodes: usize) -> Places {
        let first_port = NEXT_PORT.fetch_add(600, Ordering::Relaxed);
        Places { n_nodes, first_port, detour: 0, key: None, open: UDP }
    }

    fn host() -> String {
        let [.., high, low] = std::process::id().to_be_bytes();
        format!("127.78.{high}.{low}")
    }

    /// Address on which node `own` listens to node `peer`.
    fn port(&self, own: usize, peer: usize) -> u16 {
        self.first_port + (own * 16 + peer) as u16
    }

    fn endpoint(&self, own: usize, peer: usize) -> Box<dyn Endpoint> {
        static SEED: AtomicU16 = AtomicU16::new(0);
        let mut seed = [own as u8 + 1; 32];
        seed[..2].copy_from_slice(&SEED.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let is_master = own == 0;
        let node = RingInfo { is_master, name: name(&format!("node{own}")), ..RingInfo::default() };
        let config = LinkConfig::new(node, self.key.map(|byte| Key::new([byte; 32])), seed);
        let config = LinkConfig { n_banks: banks(self.n_nodes), ..config };
        let host = Places::host();
        let next = HostPort::new(&host, self.port(peer, own) + self.detour);
        let listen = HostPort::new(&host, self.port(own, peer));
        (self.open)(CarrierOptions::new(config, listen, Some(next)))
    }

    fn mesh(&self, own: usize) -> Mesh {
        let endpoint = |peer| (peer != own).then(|| self.endpoint(own, peer));
        Mesh::new((0..self.n_nodes).map(endpoint).collect()).unwrap()
    }

    fn lead(&self, epoch_seed: u32) -> Lead {
        Lead::new(self.mesh(0), epoch_seed)
    }

    fn member(&self, own: usize) -> Member {
        Member::new(self.mesh(own), &format!("member{own}"))
    }
}

fn opening(n_nodes: usize) -> Opening {
    let sizes = Sizes {
        ctx_len: 4096,
        n_streams: 4,
        n_pages: 9,
        max_batch: 512,
        max_logits: 4,
        kv: KvType::F16,
        wire: Dtype::F32,
        dim: 0,
    };
    Opening {
        sizes,
        layers: 0..4,
        has_ends: true,
        shares: (0..n_nodes as u16).map(|node| node + 1).collect(),
        node: 0,
        lead: name("lead"),
    }
}

/// Name of a node whose mesh was given no names.
fn named(node: usize) -> String {
    format!("node {node} of the team")
}

fn line() -> NodeLine {
    NodeLine {
        isa: heapless::String::try_from("scalar").unwrap(),
        threads: 3,
        bytes_per_token: 1 << 33,
        ..NodeLine::default()
    }
}

/// A gather, which a batch names by its ids.
#[derive(Clone)]
struct Case {
    m: usize,
    row_bytes: usize,
    parts: Vec<Part>,
    to: To,
}

impl Case {
    /// Parts of `bytes` in three ranges: each begins behind the one before of all nodes.
    fn new(m: usize, bytes: &[usize], to: To) -> Case {
        let (mut end, mut parts) = (0, vec![vec![0..0; 3]; bytes.len()]);
        for index in 0..3 {
            for (part, bytes) in parts.iter_mut().zip(bytes) {
                let n = [bytes - bytes / 4 - bytes / 8, bytes / 4, bytes / 8][index];
                part[index] = end..end + n;
                end += n;
            }
        }
        Case { m, row_bytes: end, parts, to }
    }

    /// When the lead has this all have what came before it: it may close.
    fn last(n_nodes: usize) -> Case {
        Case::new(1, &vec![1; n_nodes], To::Lead)
    }

    fn byte(id: usize, at: usize) -> u8 {
        ((at as u32).wrapping_mul(2_654_435_761).wrapping_add(id as u32 * 977) >> 13) as u8
    }

    /// Runs it on node `own`, and compares what was gathered.
    fn run(
        &self,
        id: usize,
        own: usize,
        gather: impl FnOnce(Gathered<'_>) -> Result<(), TeamError>,
    ) -> Result<(), TeamError> {
        let mut bytes = self.computed_by(id, |node| node == own);
        gather(self.rows(&mut bytes))?;
        self.compare(id, own, &bytes);
        Ok(())
    }

    /// The rows with the columns that these nodes compute.
    fn computed_by(&self, id: usize, nodes: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = vec![0xee; self.m * self.row_bytes];
        let parts = self.parts.iter().enumerate().filter(|(node, _)| nodes(*node));
        for columns in parts.flat_map(|(_, part)| part) {
            for row in 0..self.m {
                let start = row * self.row_bytes;
                let places = start + columns.start..start + columns.end;
                for (byte, at) in bytes[places.clone()].iter_mut().zip(places) {
                    *byte = Case::byte(id, at);
                }
            }
        }
        bytes
    }

    fn rows<'a>(&'a self, bytes: &'a mut [u8]) -> Gathered<'a> {
        Gathered { bytes, row_bytes: self.row_bytes, parts: &self.parts, to: self.to }
    }

    /// Compares what node `own` has after a gather: columns of no node, or only for the lead, are as they were.
    fn compare(&self, id: usize, own: usize, bytes: &[u8]) {
        let wanted = self.computed_by(id, |node| self.to == To::All || own == 0 || node == own);
        if bytes != wanted {
            let at = bytes.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
            panic!("case {id}, node {own}: byte {at:?} differs");
        }
    }
}

/// Runs a member until the lead closes, or `is_over`, on the cases that the ids of a batch name.
fn serve(mut member: Member, own: usize, cases: &[Case], is_over: &AtomicBool) -> Vec<TeamError> {
    let mut errors = Vec::new();
    loop {
        match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}) {
            Ok(Order::Open(opening)) => {
                assert_eq!(usize::from(opening.node), own);
                member.ready(line());
            }
            Ok(Order::Pass(_)) => {
                for i in 0..member.tokens().len() {
                    let id = member.tokens()[i] as usize;
                    let ran = cases[id].run(id, own, |rows| member.gather(rows));
                    if let Err(error) = ran {
                        errors.push(error);
                        break;
                    }
                }
            }
            Ok(Order::Pages) => panic!("the lead changes none"),
            Ok(Order::Close) => return errors,
            Err(error) => {
                errors.push(error);
                return errors;
            }
        }
    }
}

/// The spans of a batch of `n` ids.
fn spans(n: usize) -> [FrameSpan; 1] {
    let (n_rows, wants) = (n as u16, FrameWants::Last);
    [FrameSpan { stream: 1, wants, pos: 0, n_rows, is_long: false, state: [None; 2] }]
}

fn open(lead: &mut Lead, n_nodes: usize) {
    let limit = Some(Duration::from_secs(120));
    lead.open(&opening(n_nodes), &|| false, &mut |_| {}, limit).unwrap();
}

/// One batch of the cases `ids`.
fn pass(lead: &mut Lead, cases: &[Case], ids: &[u32]) -> Result<(), TeamError> {
    lead.start(Work::Ids, &spans(ids.len()), ids)?;
    ids.iter().try_for_each(|&id| cases[id as usize].run(id as usize, 0, |rows| lead.gather(rows)))
}

/// Lets all members go, also if a test fails: their threads are waited for.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs all cases over and over on a whole team, `n_passes` times.
fn check(places: Places, cases: &[Case], n_passes: usize) {
    let cases = &[cases, &[Case::last(places.n_nodes)]].concat();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let serve = |own| {
            let is_over = &is_over;
            scope.spawn(move || serve(places.member(own), own, cases, is_over))
        };
        let members: Vec<_> = (1..places.n_nodes).map(serve).collect();
        let mut lead = places.lead(77);
        open(&mut lead, places.n_nodes);
        assert_eq!(lead.lines().len(), places.n_nodes - 1);
        assert_eq!(lead.lines()[0].name, "member1");
        assert_eq!(lead.lines()[0].bytes_per_token, 1 << 33);
        let ids: Vec<u32> = (0..cases.len() as u32).collect();
        for _ in 0..n_passes {
            pass(&mut lead, cases, &ids).unwrap();
        }
        assert_eq!(lead.figures().gathers, (n_passes * cases.len()) as u64);
        lead.close();
        for member in members {
            assert_eq!(member.join().unwrap(), []);
        }
    });
}
