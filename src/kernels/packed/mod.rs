//! Products with weights rearranged so that a kernel reads them in order and adds without
//! horizontal sums.
//!
//! # Weights
//!
//! A packed matrix is a row of panels of `nr` matrix rows each, the last one padded with rows of
//! zeros. A panel is a row of groups:
//!
//! ```text
//! scales  [nr]                                             f32
//! w       [group / kr / steps, nr / rows, steps, rows, kr]  i8, or flipped: w + 128 as u8
//! ```
//!
//! A panel of 4-bit weights is a row of blocks of 32 columns:
//!
//! ```text
//! parameters  [nr / rows, 2, rows]                               f16, multipliers and offsets
//! codes       [32 / kr / 2 / steps, nr / rows, steps, rows, kr]  two in a byte, those of the next
//!                                                                kr columns high
//! or codes    [nr / rows / 2, 32 / kr, rows, kr]                 two in a byte, those of the next
//!                                                                strip high, less 8
//! ```
//!
//! A panel of BCML2 begins with the rows' steps; its blocks are
//!
//! ```text
//! steps       [nr]                                               f32, once a panel
//! scales      [nr]                                               u8, 0..=127
//! zeros       [nr]                                               u8; of rows with high codes less 8 less 128, as i8
//! codes                                                          as above; zeros fill up a panel to nr rows
//! ```
//!
//! with scales and zeros in the order of rows; where bytes hold codes of two strips, those of all strips with low
//! codes come first.
//!
//! A panel of BCML6 begins with steps, too. Blocks become groups of 32 columns of int8 weights, in a thread's own memory,
//! before they are multiplied by ([`six`]):
//!
//! ```text
//! steps       [nr]          f32, once a panel
//! scales      [nr]          u8, 0..=127
//! codes       [nr / 8, 192] of each 256 values of such a group in four lines of 64: low four bits of the first two
//!                           lines, one of a line's in a byte's low half, then of the others, then all high two bits
//! ```
//!
//! So a vector holds the same `kr` columns of several rows, and one instruction that multiplies
//! bytes by activations and adds neighbours gives each row a lane of its own. Where a kernel takes
//! some `rows` of a panel at once, they stand in strips that have `steps` such vectors one after
//! the other; elsewhere `rows` is `nr` and `steps` 1. All of these are a tier's choice ([`Layout`](layout::Layout));
//! the bytes are in the machine's order, as they never leave it.
//!
//! # Activations
//!
//! [`Q8Tiles`](activations::Q8Tiles): rows are taken together in tiles, of heights that a tier chooses
//! by their cost ([`cut`]). A tile of `t` rows stands in the same order as a panel, so that one of a
//! single row is plain:
//!
//! ```text
//! q       [k / kr, t, kr]   i8
//! scales  [k / group, t]    f32
//! zeros   [k / group, t]    f32, zero points; for int8 weights that are flipped
//! sums    [k / 32, t]       f32, the sum of each 32 q; for 4-bit weights; of BCML2 i32
//! ```
//!
//! # Zero points
//!
//! Instructions that multiply u8 by i8 take weights with a bias of 128 (flipped), which a group's sum
//! has to be rid of:
//!
//! ```text
//! Σ (w + 128) * q = Σ w * q + 128 * Σ q
//! ```
//!
//! So it starts at `-128 * Σ q`. Besides, it is to end as a float without a conversion: between 2^23
//! and 2^24 a float and its bits, read as an integer, count alike in steps of 1. With
//! [`ZERO`](tile::ZERO) `= 1.5 * 2^23`, in the middle, `zeros` holds `ZERO - 128 * Σ q`; a kernel takes
//! its bits as an integer, adds the products, takes the sum's bits as a float, and that is
//! `ZERO + Σ w * q`, exactly. After `j` of `n` products the sum is
//!
//! ```text
//! ZERO + Σ(i < j) w(i) * q(i) - 128 * Σ(i >= j) q(i)
//! ```
//!
//! which is at most `n * 128 * 127` from `ZERO`: less than 2^22, as `n` is at most
//! [`GROUP_MAX`](layout::GROUP_MAX), 256.

pub(super) mod activations;
pub(super) mod cut;
pub(super) mod layout;
pub(super) mod matmul;
mod pack;
pub(super) mod six;
pub(super) mod table;
pub(super) mod tile;
