//! Boards that compute together: rings, teams and places, and their failures.

#[path = "../common/mod.rs"]
mod common;
#[cfg(all(feature = "serve", feature = "pickle", feature = "demo"))]
mod draft_node;
#[cfg(all(feature = "serve", feature = "pickle", feature = "demo"))]
#[path = "../common/http.rs"]
mod http;
#[cfg(target_os = "linux")]
mod idle;
#[cfg(all(feature = "serve", feature = "pickle", feature = "demo"))]
mod live;
#[cfg(all(feature = "pickle", feature = "demo"))]
mod measured;
mod places;
#[cfg(all(feature = "pickle", feature = "demo"))]
#[path = "../common/ports.rs"]
mod ports;
mod resplit;
mod ring_pages;
mod ring_prefixes;
#[cfg(all(feature = "serve", feature = "pickle", feature = "demo"))]
mod rows;
#[cfg(feature = "demo")]
mod strangers;
#[cfg(all(feature = "pickle", feature = "demo"))]
mod strays;
mod team;
#[cfg(all(feature = "serve", feature = "pickle", feature = "demo"))]
mod undisturbed;
