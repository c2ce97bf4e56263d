//! Batches and gathers of a team allocate nothing on any node.
//!
//! The counter sees all threads but the harness's, so this file holds one test.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::alone_in_process;
use crate::counting::{allocations, leave_out_harness};
use leap::internals::team::{
    FrameSpan, FrameWants, Gathered, Lead, Member, Mesh, NodeLine, Opening, Order, Part, Sizes,
    TeamError, To, Work,
};
use leap::internals::transport::Endpoint;
use leap::internals::transport::link::LinkConfig;
use leap::internals::transport::options::CarrierOptions;
use leap::internals::transport::place::HostPort;
use leap::internals::transport::udp::Udp;
use leap::internals::wire::hello::{Name, RingInfo};
use leap::internals::wire::{Dtype, KvType};

const N_NODES: usize = 3;
/// Batches before counting, and batches while counting.
const N_PASSES: usize = 50;
/// Bytes of each node's part of a row.
const PART_BYTES: usize = 4000;

fn endpoint(own: usize) -> Box<dyn Endpoint> {
    let node = RingInfo { is_master: own == 0, ..RingInfo::default() };
    let config = LinkConfig::new(node, None, [own as u8; 32]);
    let listen = HostPort::new("127.0.0.1", 0);
    Box::new(Udp::open(CarrierOptions::new(config, listen, None)).unwrap())
}

/// A mesh for each node.
fn meshes() -> Vec<Mesh> {
    let mut all: Vec<Vec<Option<Box<dyn Endpoint>>>> = (0..N_NODES)
        .map(|own| (0..N_NODES).map(|peer| (peer != own).then(|| endpoint(own))).collect())
        .collect();
    let address = |endpoint: &Option<Box<dyn Endpoint>>| {
        endpoint.as_ref().map(|endpoint| endpoint.local_address())
    };
    let addresses: Vec<Vec<_>> = all.iter().map(|row| row.iter().map(address).collect()).collect();
    for (own, endpoints) in all.iter_mut().enumerate() {
        for (peer, endpoint) in endpoints.iter_mut().enumerate() {
            if let (Some(endpoint), Some(address)) = (endpoint, addresses[peer][own]) {
                endpoint.set_next(address);
            }
        }
    }
    all.into_iter().map(|endpoints| Mesh::new(endpoints).unwrap()).collect()
}

fn opening() -> Opening {
    let sizes = Sizes {
        ctx_len: 4096,
        n_streams: 1,
        n_pages: 9,
        max_batch: 16,
        max_logits: 1,
        kv: KvType::F16,
        wire: Dtype::F32,
        dim: 0,
    };
    Opening {
        sizes,
        layers: 0..4,
        has_ends: true,
        shares: [1; N_NODES].into_iter().collect(),
        node: 0,
        lead: Name::new(),
    }
}

/// A call to a node's gather functions.
enum Call<'c, 'r> {
    Gather(Gathered<'r>),
    Start(&'c mut [Gathered<'r>]),
    Finish(&'c mut [Gathered<'r>]),
}

/// Each node's part of a row.
fn parts() -> Vec<Part> {
    let part = |i: usize| i * PART_BYTES..(i + 1) * PART_BYTES;
    (0..N_NODES).map(|i| vec![part(i)]).collect()
}

/// Makes the gathers of a batch one by one, then two at a time.
fn gather_all(
    (bytes, parts): (&mut [u8], &[Part]),
    mut call: impl FnMut(Call<'_, '_>) -> Result<(), TeamError>,
) -> Result<(), TeamError> {
    let row_bytes = N_NODES * PART_BYTES;
    for (m, to) in [(1, To::All), (16, To::All), (2, To::Lead)] {
        let bytes = &mut bytes[..m * row_bytes];
        call(Call::Gather(Gathered { bytes, row_bytes, parts, to }))?;
    }
    let (first, second) = bytes.split_at_mut(8 * row_bytes);
    let mut rows = [first, second].map(|bytes| Gathered { bytes, row_bytes, parts, to: To::All });
    call(Call::Start(&mut rows[..1]))?;
    call(Call::Start(&mut rows))?;
    call(Call::Finish(&mut rows))?;
    call(Call::Finish(&mut rows[1..]))
}

fn serve(mut member: Member, bytes: &mut [u8], is_warm: &Barrier) {
    let (mut n, parts) = (0, parts());
    loop {
        match member.next(&|| false, &mut |_| {}).unwrap() {
            Order::Open(_) => member.ready(NodeLine::default()),
            Order::Pass(_) => {
                assert_eq!(member.tokens().len(), 16);
                let gathered = gather_all((&mut *bytes, &parts), |call| match call {
                    Call::Gather(rows) => member.gather(rows),
                    Call::Start(rows) => member.start_gather(rows),
                    Call::Finish(rows) => member.finish_gather(rows),
                });
                gathered.unwrap();
                n += 1;
                if n % N_PASSES == 0 {
                    is_warm.wait();
                    is_warm.wait();
                }
            }
            Order::Pages | Order::Close => return,
        }
    }
}

#[test]
fn batches_and_gathers_allocate_nothing() {
    let _alone = alone_in_process();
    leave_out_harness();
    let mut meshes = meshes().into_iter();
    let is_warm = Barrier::new(N_NODES);
    let (warming, warm) = thread::scope(|scope| {
        let mut lead = Lead::new(meshes.next().unwrap(), 1);
        for mesh in meshes {
            let is_warm = &is_warm;
            scope.spawn(move || {
                let mut bytes = vec![0; 16 * N_NODES * PART_BYTES];
                serve(Member::new(mesh, "member"), &mut bytes, is_warm);
            });
        }
        let limit = Some(Duration::from_secs(120));
        lead.open(&opening(), &|| false, &mut |_| {}, limit).unwrap();
        let wants = FrameWants::Last;
        let spans =
            [FrameSpan { stream: 0, wants, pos: 0, n_rows: 16, is_long: false, state: [None; 2] }];
        let (mut bytes, parts) = (vec![0; 16 * N_NODES * PART_BYTES], parts());
        let mut passes = || {
            let before = allocations();
            for _ in 0..N_PASSES {
                lead.start(Work::Ids, &spans, &[7; 16]).unwrap();
                let gathered = gather_all((&mut bytes, &parts), |call| match call {
                    Call::Gather(rows) => lead.gather(rows),
                    Call::Start(rows) => lead.start_gather(rows),
                    Call::Finish(rows) => lead.finish_gather(rows),
                });
                gathered.unwrap();
            }
            is_warm.wait();
            let n = allocations() - before;
            is_warm.wait();
            n
        };
        // Buffers may grow at first.
        let counted = (passes(), passes());
        lead.close();
        counted
    });
    assert!(allocations() > 0, "nothing is counted");
    assert_eq!(warm, 0, "after {warming} before");
}
