//! Files, functions and structs stay small enough to be read at once.

use super::source::Token;
use super::{File, group_end, text};

/// Most lines of a file.
const FILE_LINES_MAX: usize = 800;
/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 60;
/// Most fields of a struct. One that holds the options of a command has a field for each.
const FIELDS_MAX: usize = 12;

/// Structs that may have more fields, because something outside of the program says which there are.
const WIDE: &[(&str, &str)] = &[
    ("src/format/model/features.rs", "Features"), // One for each optional part of a model file's header.
    ("src/format/model/header.rs", "Header"),     // One for each field of a model file's header.
    ("src/format/tokenizer/file.rs", "TokenizerFlags"), // One for each bit of the file's flags.
    ("crates/kernels/src/kernels/table.rs", "Table"), // One for each operation that an instruction set has.
    ("src/ring/plan/fleet.rs", "Board"), // One for each word of a line in a ring file's list of boards.
    ("src/sys/tensor/abi.rs", "DeviceStats"), // A struct of the kernel module's interface.
];

/// The files (path, text) that are too long, one line each.
pub(crate) fn files_too_long(files: &[(String, String)]) -> Vec<String> {
    let lines = files.iter().map(|(path, text)| (path, text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    long.map(|(path, lines)| format!("{path} has {lines} lines")).collect()
}

/// The functions in `files` that are too long, one line each.
pub(crate) fn functions_too_long<'f>(files: impl Iterator<Item = &'f File>) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (name, lines) in functions(file).filter(|(_, lines)| *lines > FUNCTION_LINES_MAX) {
            found.push(format!("{}: `{name}` has {lines} lines", file.path));
        }
    }
    found
}

/// The functions of `file` with their numbers of lines.
fn functions(file: &File) -> impl Iterator<Item = (&str, usize)> {
    let tokens = &file.tokens;
    let is_named = |&i: &usize| text(tokens, i) == "fn" && text(tokens, i + 1) != "(";
    (0..tokens.len()).filter(is_named).filter_map(|i| {
        let body = (i..tokens.len()).find(|&n| ["{", ";"].contains(&text(tokens, n)))?;
        let end = group_end(tokens, body);
        let lines = tokens[end - 1].line - tokens[i].line + 1;
        (text(tokens, body) == "{").then(|| (text(tokens, i + 1), lines))
    })
}

/// The structs in `files` with too many fields, and the rows of [`WIDE`] without a reason, one line each.
pub(crate) fn structs_too_wide<'f>(files: impl Iterator<Item = &'f File>) -> Vec<String> {
    let (mut found, mut wide) = (Vec::new(), Vec::new());
    for file in files {
        for (name, n_fields) in structs(file).filter(|(_, n)| *n > FIELDS_MAX) {
            match WIDE.contains(&(&file.path, name)) {
                true => wide.push((file.path.as_str(), name)),
                false => found.push(format!("{}: `{name}` has {n_fields} fields", file.path)),
            }
        }
    }
    let idle = WIDE.iter().filter(|row| !wide.contains(row));
    found.extend(idle.map(|(path, name)| format!("{path}: `{name}` needs no row in WIDE")));
    found
}

/// The structs of `file` with their numbers of fields, without those that argh fills with a command's options.
fn structs(file: &File) -> impl Iterator<Item = (&str, usize)> {
    let tokens = &file.shipped;
    let mut is_command = false;
    (0..tokens.len()).filter_map(move |i| {
        match text(tokens, i) {
            "FromArgs" => is_command = true,
            ";" | "}" => is_command = false,
            "struct" => {
                let body =
                    (i..tokens.len()).find(|&n| ["{", "(", ";"].contains(&text(tokens, n)))?;
                let is_command = std::mem::take(&mut is_command);
                let has_names = text(tokens, body) == "{" && !is_command;
                return has_names.then(|| (text(tokens, i + 1), n_fields(&tokens[body + 1..])));
            }
            _ => {}
        }
        None
    })
}

/// How many fields the body of a struct has that `tokens` begin with.
fn n_fields(tokens: &[Token]) -> usize {
    let (mut depth, mut n) = (0, 0);
    for (i, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "(" | "[" | "{" | "<" => depth += 1,
            ">" if text(tokens, i.wrapping_sub(1)) == "-" => {}
            "}" if depth == 0 => break,
            ")" | "]" | "}" | ">" => depth -= 1,
            // A path has `::`, which is another token.
            ":" if depth == 0 => n += 1,
            _ => {}
        }
    }
    n
}

#[test]
fn a_struct_with_many_fields_is_found() {
    let with = |n: usize, head: &str| {
        let fields = "#[a(b = 1)] pub(super) a: std::vec::Vec<(u8, fn(x: u8) -> [u8; 2])>,\n";
        File::new(
            "src/a.rs",
            &format!("struct B;\n{head} struct A<'a, T: C> {{{}}}", fields.repeat(n)),
        )
    };
    let found = |file: File| {
        let found = structs_too_wide([file].iter());
        found.into_iter().filter(|line| line.contains("src/a.rs")).collect::<Vec<_>>()
    };
    assert_eq!(found(with(12, "pub")), [""; 0]);
    assert_eq!(found(with(13, "pub")), ["src/a.rs: `A` has 13 fields"]);
    assert_eq!(found(with(13, "#[derive(FromArgs)] #[argh(subcommand)]")), [""; 0]);
    assert_eq!(found(with(13, "#[cfg(test)]")), [""; 0]);
}

#[test]
fn what_is_too_long_is_found() {
    let function =
        |lines: usize| format!("type F = fn(u8);\nfn f() {{{}}}\n", "\n".repeat(lines - 1));
    let file = |lines| File::new("src/a.rs", &function(lines));
    assert_eq!(functions_too_long([file(60)].iter()), [""; 0]);
    assert_eq!(functions_too_long([file(61)].iter()), ["src/a.rs: `f` has 61 lines"]);
    let file = |lines| [("src/a.rs".to_owned(), "\n".repeat(lines))];
    assert_eq!(files_too_long(&file(800)), [""; 0]);
    assert_eq!(files_too_long(&file(801)), ["src/a.rs has 801 lines"]);
}
