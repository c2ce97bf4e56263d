//! Frames cross a link without allocations, on both ends and over every carrier.
//!
//! The counter sees all threads but the harness's, so this file holds one test.

use std::time::{Duration, Instant};

use super::alone_in_process;
use crate::counting::{allocations, leave_out_harness};
use leap::internals::transport::Endpoint;
use leap::internals::transport::link::{LinkConfig, LinkState};
use leap::internals::transport::options::CarrierOptions;
use leap::internals::transport::place::HostPort;
use leap::internals::transport::tcp::Tcp;
use leap::internals::transport::udp::Udp;
use leap::internals::wire::datagram::FRAME_MAX;
use leap::internals::wire::hello::RingInfo;
use leap::internals::wire::seal::Key;

/// Frames of each length, sent while counting.
const N_FRAMES: usize = 200;

fn options(layers: (u32, u32), key: Option<Key>, next: Option<HostPort>) -> CarrierOptions {
    let node = RingInfo {
        n_layers: 2,
        wish: Some(layers.0..layers.1),
        is_master: layers.0 == 0,
        ..RingInfo::default()
    };
    let config = LinkConfig::new(node, key, [layers.0 as u8; 32]);
    CarrierOptions::new(config, HostPort::new("127.0.0.1", 0), next)
}

/// Sends frames of `bytes` from `a` to `b`; returns the allocations of both.
fn allocations_of(a: &mut dyn Endpoint, b: &mut dyn Endpoint, bytes: usize) -> usize {
    let before = allocations();
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < N_FRAMES {
        assert!(start.elapsed() < Duration::from_secs(60), "{received} frames in 60 s");
        if let Some(next) = &mut a.links().next
            && sent < N_FRAMES
            && let Some(room) = next.reserve()
        {
            room[..bytes].fill(sent as u8);
            next.commit(bytes);
            sent += 1;
        }
        a.service(Duration::ZERO).unwrap();
        b.service(Duration::ZERO).unwrap();
        if let Some(prev) = &mut b.links().prev
            && let Some(frame) = prev.front()
        {
            assert_eq!((frame.len(), frame[bytes - 1]), (bytes, received as u8));
            prev.release();
            received += 1;
        }
    }
    allocations() - before
}

fn connect(a: &mut dyn Endpoint, b: &mut dyn Endpoint) {
    let start = Instant::now();
    while a.links().next.as_ref().is_none_or(|next| *next.state() != LinkState::Up) {
        assert!(start.elapsed() < Duration::from_secs(20), "no link in 20 s");
        a.service(Duration::from_millis(1)).unwrap();
        b.service(Duration::from_millis(1)).unwrap();
    }
}

fn check(open: fn(CarrierOptions) -> Box<dyn Endpoint>, key: Option<Key>) {
    let mut b = open(options((1, 2), key.clone(), None));
    let next = HostPort::new("127.0.0.1", b.local_address().port());
    let mut a = open(options((0, 1), key, Some(next)));
    connect(a.as_mut(), b.as_mut());
    for bytes in [64, 16 << 10, FRAME_MAX] {
        // The first frames may still grow buffers.
        allocations_of(a.as_mut(), b.as_mut(), bytes);
        let n = allocations_of(a.as_mut(), b.as_mut(), bytes);
        assert_eq!(n, 0, "{} frames of {bytes} bytes over {}", N_FRAMES, a.carrier());
    }
}

#[test]
fn frames_cross_a_link_without_allocations() {
    let _alone = alone_in_process();
    leave_out_harness();
    for key in [None, Some(Key::new([5; 32]))] {
        check(|options| Box::new(Udp::open(options).unwrap()), key.clone());
        check(|options| Box::new(Tcp::open(options).unwrap()), key);
    }
    // The counter itself must work.
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert!(allocations() > before);
}
