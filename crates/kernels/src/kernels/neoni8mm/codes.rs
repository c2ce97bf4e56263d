//! Shared by tiles that unpack codes as they go: their products with a block, in registers that each file's map names.

/// Unpacks two vectors of bytes: low codes go to registers of their own.
macro_rules! split {
    ($a:ident $b:ident) => {
        concat!(
            low_codes!(code0 $a), low_codes!(code1 $b), high_codes!($a), high_codes!($b),
        )
    };
}

macro_rules! low_codes {
    ($code:ident $byte:ident) => {
        concat!("and v", r!($code), ".16b, v", r!($byte), ".16b, v", r!(mask), ".16b\n")
    };
}

macro_rules! high_codes {
    ($byte:ident) => {
        concat!("ushr v", r!($byte), ".16b, v", r!($byte), ".16b, #4\n")
    };
}

/// Defines the steps of a tile that takes pairs of rows: its products, and steps that are a line for each pair.
macro_rules! pair_steps {
    ($products:ident: $load_x:ident $pairs:ident; $lines:ident: $($step:ident = $line:ident),+) => {
        macro_rules! $products {
            ($parity:ident) => {
                products!($load_x $pairs)
            };
        }

        $(macro_rules! $step {
            () => {
                $lines!($line)
            };
        })+
    };
}

/// Fills the registers that stay.
macro_rules! constants {
    () => {
        concat!("movi v", r!(mask), ".16b, #15\n")
    };
}

/// Two pairs by a strip of a block.
macro_rules! strip_by_4 {
    ($next:literal $low0:ident $high0:ident $low1:ident $high1:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            split!(byte0 byte1),
            smmla_pair!(code0 code1 x0: $low0 $high0), smmla_pair!(code0 code1 x1: $low1 $high1),
            smmla_pair!(byte0 byte1 x2: $low0 $high0), smmla_pair!(byte0 byte1 x3: $low1 $high1),
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            split!(byte2 byte3),
            smmla_pair!(code0 code1 x0: $low0 $high0), smmla_pair!(code0 code1 x1: $low1 $high1),
            smmla_pair!(byte2 byte3 x2: $low0 $high0), smmla_pair!(byte2 byte3 x3: $low1 $high1),
        )
    };
}

/// Loads eight columns of three rows. The fourth row's place gets the next columns. In a block's last load there are
/// none: the third row is loaded twice.
macro_rules! load_x_3 {
    ($a:ident $b:ident) => {
        concat!("ld1 {{v", r!($a), ".16b, v", r!($b), ".16b}}, [{x}], {columns_bytes}\n")
    };
    ($a:ident $b:ident last) => {
        concat!("ldr q", r!($a), ", [{x}], #16\n", load_pair!($b, "x"))
    };
}

/// Loads the activations of five rows.
macro_rules! load_x_5 {
    () => {
        load_x_6!("{columns_bytes}")
    };
    (last) => {
        concat!("ld1 {{v", r!(x0), ".16b, v", r!(x1), ".16b}}, [{x}], #32\n", load_pair!(x2, "x"))
    };
}

/// Loads the activations of six rows.
macro_rules! load_x_6 {
    ($next:literal) => {
        concat!(
            "ld1 {{v",
            r!(x0),
            ".16b, v",
            r!(x1),
            ".16b, v",
            r!(x2),
            ".16b}}, [{x}], ",
            $next,
            "\n",
        )
    };
    ($(last)?) => {
        load_x_6!("#48")
    };
}

/// Loads the activations of seven rows.
macro_rules! load_x_7 {
    () => {
        load_4!("16b" x0 x1 x2 x3, "x", "{columns_bytes}")
    };
    (last) => {
        concat!(load_x_6!(), load_pair!(x3, "x"))
    };
}

/// Loads the activations of eight rows.
macro_rules! load_x_8 {
    ($(last)?) => {
        load_4!("16b" x0 x1 x2 x3, "x", "#64")
    };
}

/// The products of a strip's eight columns with two pairs.
macro_rules! two_pairs {
    ($low_w:ident $high_w:ident) => {
        concat!(
            smmla_pair!($low_w $high_w x0: low0 high0),
            smmla_pair!($low_w $high_w x1: low1 high1),
        )
    };
}

/// The products of a strip's eight columns with three pairs.
macro_rules! three_pairs {
    ($low_w:ident $high_w:ident) => {
        concat!(two_pairs!($low_w $high_w), smmla_pair!($low_w $high_w x2: low2 high2))
    };
}

/// The products of a strip's eight columns with four pairs.
macro_rules! four_pairs {
    ($low_w:ident $high_w:ident) => {
        concat!(three_pairs!($low_w $high_w), smmla_pair!($low_w $high_w x3: low3 high3))
    };
}

/// The products of a block with a strip; `$load_x` loads eight columns of the rows, `$pairs` multiplies them.
macro_rules! products {
    ($load_x:ident $pairs:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", "{to_next}"),
            $load_x!(),
            split!(byte0 byte1),
            $pairs!(code0 code1),
            $load_x!(),
            $pairs!(byte0 byte1),
            $load_x!(),
            split!(byte2 byte3),
            $pairs!(code0 code1),
            $load_x!(last),
            $pairs!(byte2 byte3),
        )
    };
}

/// Clears a pair's sums.
macro_rules! clear_sums {
    ($low:ident $high:ident) => {
        concat!("movi v", r!($low), ".2d, #0\nmovi v", r!($high), ".2d, #0\n")
    };
}

/// Loads four bytes into all four lanes: a row's scale or sum.
macro_rules! load_row {
    ($to:ident, $from:literal) => {
        concat!("ld1r {{v", r!($to), ".4s}}, [{", $from, "}], #4\n")
    };
}
