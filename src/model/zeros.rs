//! Room on the stack.

use bytemuck::Zeroable;

/// Zeros. In programs that are optimised for size, `[0.0; N]` is a loop of `N` steps; this is not.
pub(super) fn zeros<const N: usize>() -> [f32; N] {
    Zeroable::zeroed()
}
