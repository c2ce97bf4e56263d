//! The program as people, scripts and clients use it.

#[cfg(all(feature = "tools", feature = "demo"))]
mod cli;
#[path = "../common/mod.rs"]
mod common;
#[cfg(all(feature = "forms", feature = "tools", feature = "demo"))]
#[path = "../common/http.rs"]
mod http;
#[cfg(all(feature = "forms", feature = "tools", feature = "demo"))]
#[path = "../common/ports.rs"]
mod ports;
mod process;
#[cfg(all(feature = "pull", feature = "forms", feature = "demo", not(target_env = "musl")))]
mod pull;
#[cfg(all(feature = "forms", feature = "tools", feature = "demo"))]
mod serve;
#[cfg(all(feature = "tools", feature = "demo", not(target_env = "musl")))]
mod terminal;
