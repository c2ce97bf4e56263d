//! Products with weights in an order that lets a kernel read them in sequence and add without horizontal sums.
//!
//! # Weights
//!
//! A packed matrix is a sequence of panels of `nr` matrix rows each; the last is padded with rows of zeros. A panel is
//! a sequence of groups:
//!
//! ```text
//! scales  [nr]                                             f32
//! w       [group / kr / steps, nr / rows, steps, rows, kr]  i8, or flipped: w + 128 as u8
//! ```
//!
//! A panel of 4-bit weights is a sequence of blocks of 32 columns:
//!
//! ```text
//! parameters  [nr / rows, 2, rows]                               f16, multipliers and offsets
//! codes       [32 / kr / 2 / steps, nr / rows, steps, rows, kr]  two in a byte, those of the next
//!                                                                kr columns high
//! or codes    [nr / rows / 2, 32 / kr, rows, kr]                 two in a byte, those of the next
//!                                                                strip high, less 8
//! ```
//!
//! A panel of BCML2 begins with its rows' steps. Its blocks are
//!
//! ```text
//! steps       [nr]                                               f32, once a panel
//! scales      [nr]                                               u8, 0..=127
//! zeros       [nr]                                               u8; of rows with high codes less 8 less 128, as i8
//! codes                                                          as above; zeros fill up a panel to nr rows
//! ```
//!
//! with scales and zeros in the order of rows. If bytes hold codes of two strips, those of all strips with low codes
//! come first.
//!
//! A panel of BCML6 begins with steps, too. Before they are multiplied, blocks are unpacked in a thread's own memory to
//! groups of 32 columns of int8 weights ([`six`]):
//!
//! ```text
//! steps       [nr]          f32, once a panel
//! scales      [nr]          u8, 0..=127
//! codes       [nr / 8, 192] of each 256 values of such a group in four lines of 64: low four bits of the first two
//!                           lines, one of a line's in a byte's low half, then of the others, then all high two bits
//! ```
//!
//! Blocks of GGUF files are unpacked in the same way ([`ggml`]), unless their codes are bytes: those are groups of 32 int8
//! weights. Tiles of x86-64 take such codes as they are, with the scales and offsets of their runs (`bytes.rs`).
//!
//! So a vector holds the same `kr` columns of several rows, and an instruction that multiplies bytes by activations and
//! adds neighbours gives each row a lane of its own. If a kernel takes only some `rows` of a panel at once, these form
//! strips of `steps` such vectors one after the other; otherwise `rows` is `nr` and `steps` 1. A tier chooses all of
//! these ([`Layout`](layout::Layout)). Bytes are in the machine's order, because they never leave it.
//!
//! # Activations
//!
//! [`Q8Tiles`](activations::Q8Tiles): rows are taken together in tiles, of heights that a tier chooses by their cost
//! ([`cut`]). A tile of `t` rows has the order of a panel; a tile of a single row is a plain row:
//!
//! ```text
//! q       [k / kr, t, kr]   i8
//! scales  [k / group, t]    f32
//! zeros   [k / group, t]    f32, zero points; for int8 weights
//! sums    [k / 32, t]       f32, the sum of each 32 q; for 4-bit weights; of BCML2 i32
//! ```
//!
//! # Zero points
//!
//! Instructions that multiply u8 by i8 take weights with a bias of 128 (flipped), which a group's sum must lose again:
//!
//! ```text
//! Σ (w + 128) * q = Σ w * q + 128 * Σ q
//! ```
//!
//! So the sum starts at `-128 * Σ q`. It also ends as a float without a conversion: between 2^23 and 2^24, a float and
//! its bits read as an integer both count in steps of 1. With [`ZERO`](tile::ZERO) `= 1.5 * 2^23`, in the middle,
//! `zeros` holds `ZERO - 128 * Σ q`. A kernel takes its bits as an integer, adds the products, and takes the sum's bits
//! as a float: exactly `ZERO + Σ w * q`. After `j` of `n` products the sum is
//!
//! ```text
//! ZERO + Σ(i < j) w(i) * q(i) - 128 * Σ(i >= j) q(i)
//! ```
//!
//! which is at most `n * 128 * 127` from `ZERO`: less than 2^22, because `n` is at most
//! [`GROUP_MAX`](layout::GROUP_MAX), 256.

pub(super) mod activations;
#[cfg(target_arch = "x86_64")]
pub(super) mod bytes;
pub(super) mod cut;
pub(super) mod ggml;
pub(super) mod layout;
pub(super) mod matmul;
mod pack;
mod rows;
pub(super) mod six;
pub(super) mod table;
pub(super) mod tile;
