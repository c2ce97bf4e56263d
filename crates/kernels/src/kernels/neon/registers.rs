//! Names for vector registers in assembly.
//!
//! A template must contain register numbers if instructions want neighbouring registers, or if a macro repeats them for
//! many. A file with such assembly begins with its map, [`registers!`], which makes a macro `r!` from names to numbers.
//! All its templates name registers by `r!`. The macros below, and other files' macros that it calls, take names, which
//! the caller's map explains.

/// `registers! { sum = 0, weights = 24 }` is a map: `concat!("v", r!(sum))` is `v0`. A number may have several names,
/// for what the register holds at different times.
macro_rules! registers {
    ($($name:ident = $number:literal),* $(,)?) => {
        const _: () = {
            #[expect(
                dead_code, unused_variables, clippy::too_many_arguments,
                reason = "so that a name that stands twice is an error"
            )]
            fn names($($name: u8),*) {}
        };

        macro_rules! r {
            $(($name) => { $number };)*
        }
    };
}

/// An instruction from two registers of four floats to a third.
macro_rules! floats {
    ($name:literal $to:ident $a:ident $b:ident) => {
        concat!($name, " v", r!($to), ".4s, v", r!($a), ".4s, v", r!($b), ".4s\n")
    };
}

/// An instruction on four floats and one lane of another register.
macro_rules! floats_by_lane {
    ($name:literal $to:ident $a:ident $b:ident $lane:literal) => {
        concat!($name, " v", r!($to), ".4s, v", r!($a), ".4s, v", r!($b), ".s[", $lane, "]\n")
    };
}

/// Converts four integers to floats.
macro_rules! to_floats {
    ($to:ident $from:ident) => {
        concat!("scvtf v", r!($to), ".4s, v", r!($from), ".4s\n")
    };
}

/// Loads four registers with one instruction: `load_4!("16b" a b c d, "x", "#64")` from the address in `{x}`, to which
/// it then adds the step.
macro_rules! load_4 {
    ($lanes:literal $a:ident $b:ident $c:ident $d:ident, $from:literal $(, $step:literal)?) => {
        concat!(
            "ld1 {{v", r!($a), ".", $lanes, ", v", r!($b), ".", $lanes, ", v", r!($c), ".", $lanes,
            ", v", r!($d), ".", $lanes, "}}, [{", $from, "}]", $(", ", $step,)? "\n",
        )
    };
}

/// Stores four registers of floats, like `load_4!`.
macro_rules! store_4 {
    ($a:ident $b:ident $c:ident $d:ident, $to:literal $(, $step:literal)?) => {
        concat!(
            "st1 {{v", r!($a), ".4s, v", r!($b), ".4s, v", r!($c), ".4s, v", r!($d), ".4s}}, [{",
            $to, "}]", $(", ", $step,)? "\n",
        )
    };
}

/// Loads two registers from `{x}`, to which it then adds 32 bytes.
macro_rules! load_2 {
    ($a:ident $b:ident, $from:literal) => {
        concat!("ldp q", r!($a), ", q", r!($b), ", [{", $from, "}], #32\n")
    };
}

/// Defines what a tile begins an activation group with, and ends its blocks with, of the file's `begin!`, `next!` and
/// `last!`. `$with` are arguments of all three. The registers with a block's parameters follow, of even blocks and of odd
/// ones: one block's parameters are still needed when the next block's are loaded.
macro_rules! block_ends {
    ($begin:ident $next:ident $last:ident: $($with:ident)+, $($even:ident)+, $($odd:ident)+) => {
        macro_rules! $begin {
            () => {
                begin!($($with)+)
            };
        }

        macro_rules! $next {
            (even) => {
                next!($($with)+ $($even)+, $($odd)+)
            };
            (odd) => {
                next!($($with)+ $($odd)+, $($even)+)
            };
        }

        macro_rules! $last {
            (even) => {
                last!($($with)+ $($even)+)
            };
            (odd) => {
                last!($($with)+ $($odd)+)
            };
        }
    };
}

pub(in super::super) use {
    block_ends, floats, floats_by_lane, load_2, load_4, registers, store_4, to_floats,
};
