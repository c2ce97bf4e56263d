//! Files and functions stay short enough to be read at once.

use super::{File, group_end, text};

/// Most lines of a file.
const FILE_LINES_MAX: usize = 600;
/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 60;

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

#[test]
fn what_is_too_long_is_found() {
    let function =
        |lines: usize| format!("type F = fn(u8);\nfn f() {{{}}}\n", "\n".repeat(lines - 1));
    let file = |lines| File::new("src/a.rs", &function(lines));
    assert_eq!(functions_too_long([file(60)].iter()), [""; 0]);
    assert_eq!(functions_too_long([file(61)].iter()), ["src/a.rs: `f` has 61 lines"]);
    let file = |lines| [("src/a.rs".to_owned(), "\n".repeat(lines))];
    assert_eq!(files_too_long(&file(600)), [""; 0]);
    assert_eq!(files_too_long(&file(601)), ["src/a.rs has 601 lines"]);
}
