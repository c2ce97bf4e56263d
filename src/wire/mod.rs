//! Byte formats that nodes exchange. No sockets, no clocks, no allocation sized by a peer.

pub mod frame;
