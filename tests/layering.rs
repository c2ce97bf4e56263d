//! Checks `src/` and `crates/kernels/src/` against the layers that `src/lib.rs` describes.
//!
//! - A module uses only the modules that its row of [`LAYERS`] names, and each of them.
//! - Only `cli` prints or ends the process; only it may hide an error's type.
//! - No two files use each other, even through other files; files, functions and structs are small.
//! - Only [`JSON_WRITER`] makes JSON of values.
//! - Only [`UNSAFE`] modules have unsafe code, and each block of it says why it is sound.
//! - A comment can be read alone, also in `tests/` and `benches/`.
//!
//! Test code (`#[cfg(test)]`) may use every layer and print, because test oracles come from anywhere; the rules for
//! unsafe code apply to it too. Macros are read unexpanded.

#[path = "layering/circles.rs"]
mod circles;
#[path = "layering/docs.rs"]
mod docs;
#[path = "layering/size.rs"]
mod size;
#[path = "layering/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use source::{Line, Token};

/// Each module, and the modules that it may use. `main` is `src/main.rs`; `src/lib.rs` uses all.
const LAYERS: &[(&str, &[&str])] = &[
    ("quant", &[]),
    ("numerics", &[]),
    ("wire", &["numerics"]),
    ("arena", &[]),
    ("sampler", &["numerics"]),
    ("format", &["quant"]),
    ("tokenizer", &["format", "sys"]),
    ("export", &["format", "quant", "sys", "tokenizer"]),
    ("store", &["format", "sys"]),
    ("sys", &[]),
    ("kernels", &["quant"]),
    ("pool", &["sys"]),
    ("pack", &["sys"]),
    ("model", &["arena", "format", "kernels", "numerics", "pack", "pool", "quant", "sys"]),
    ("gpu", &["format", "kernels", "model", "pool", "quant", "sys"]),
    ("transport", &["sys", "wire"]),
    ("group", &["wire"]),
    ("ring", &["group", "transport", "wire"]),
    ("team", &["group", "sys", "transport", "wire"]),
    ("channel", &["sys", "wire"]),
    ("call", &["channel", "sys", "wire"]),
    ("control", &["sys"]),
    ("fetch", &["channel", "format", "sys", "wire"]),
    ("engine", BELOW_CLI),
    (
        "fleet",
        &[
            "call",
            "channel",
            "control",
            "engine",
            "fetch",
            "format",
            "group",
            "kernels",
            "model",
            "pool",
            "quant",
            "ring",
            "sys",
            "team",
            "transport",
            "wire",
        ],
    ),
    ("serve", &["engine", "format", "sampler", "sys", "tokenizer"]),
    ("cli", BELOW_CLI),
    ("main", &["cli", "sys"]),
];

const BELOW_CLI: &[&str] = &[
    "arena",
    "call",
    "channel",
    "control",
    "engine",
    "export",
    "fetch",
    "fleet",
    "format",
    "gpu",
    "group",
    "kernels",
    "model",
    "numerics",
    "pack",
    "pool",
    "quant",
    "ring",
    "sampler",
    "serve",
    "store",
    "sys",
    "team",
    "tokenizer",
    "transport",
    "wire",
];

/// Sources of the package that holds `kernels`, `quant`, `numerics` and `sampler`.
const KERNELS: &str = "crates/kernels/src/";

/// Modules that may print, exit and hide an error's type.
const TERMINAL: &[&str] = &["cli", "main"];

/// Files that end the process, or a copy of it, where no error can be returned: in a signal handler, or without memory.
/// Message and exit code come from `cli`.
const LAST_WORDS: &[&str] = &["src/sys/signal.rs", "src/sys/heap.rs", "src/sys/child.rs"];

/// Writes all JSON of the tree.
const JSON_WRITER: &str = "src/format/json/";

/// Modules that may hold unsafe code.
const UNSAFE: &[&str] = &["gpu", "kernels", "pool", "sys"];

#[test]
fn sources_keep_to_their_layers() {
    let files = read_layers();
    assert!(files.iter().any(|(path, _)| path == "src/lib.rs"), "no sources found");
    let mut found = violations(&files);
    found.extend(unused(&files));
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn code_is_small_and_files_use_each_other_in_one_direction() {
    let files = read_layers();
    let mut found = size::files_too_long(&files);
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    found.extend(circles::circles(shipped(&files)));
    found.extend(size::structs_too_wide(shipped(&files)));
    found.extend(size::functions_too_long(files.iter()));
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn comments_can_be_read_alone() {
    let mut files = read_layers();
    for folder in ["tests", "benches"] {
        read_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), folder, &mut files);
    }
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    let found = docs::leaning(files.iter());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// Every `.rs` file of the layers: its path from the package's root, and its text.
fn read_layers() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["src", KERNELS.trim_end_matches('/')] {
        read_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), folder, &mut files);
    }
    files.retain(|(path, _)| *path != format!("{KERNELS}lib.rs"));
    files
}

/// Collects every `.rs` file below `folder`: its path from the package's root, and its text.
fn read_sources(folder: &Path, name: &str, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("the package's sources are readable") {
        let path = entry.expect("the package's sources are readable").path();
        let file_name = path.file_name().and_then(|n| n.to_str()).expect("names are UTF-8");
        let name = format!("{name}/{file_name}");
        if path.is_dir() {
            read_sources(&path, &name, files);
        } else if name.ends_with(".rs") {
            files.push((name, fs::read_to_string(&path).expect("sources are UTF-8")));
        }
    }
}

/// Violations of the rules in `files` (path, text), one line each.
fn violations(files: &[(String, String)]) -> Vec<String> {
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    let mut found = Vec::new();
    for file in &files {
        file.check_unsafe(&mut found);
    }
    for file in shipped(&files) {
        file.check_uses(&mut found);
        file.check_terminal(&mut found);
        file.check_json(&mut found);
    }
    found
}

/// Permissions in the rows of [`LAYERS`] that no file in `files` (path, text) uses, one line each. Layers that join
/// everything may use everything.
fn unused(files: &[(String, String)]) -> Vec<String> {
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    let uses: BTreeSet<(&str, &str)> = shipped(&files)
        .flat_map(|file| file.root_names().into_iter().map(|used| (file.layer(), &*used.text)))
        .collect();
    let rows = LAYERS.iter().filter(|(_, row)| *row != BELOW_CLI);
    let allowed = rows.flat_map(|(name, row)| row.iter().map(move |used| (*name, *used)));
    let idle = allowed.filter(|pair| !uses.contains(pair));
    idle.map(|(name, used)| format!("`{name}` may use `{used}`, and does not")).collect()
}

/// The files that are not test code as a whole.
fn shipped(files: &[File]) -> impl Iterator<Item = &File> {
    let test_modules: BTreeSet<&[String]> =
        files.iter().flat_map(|f| f.test_modules.iter().map(Vec::as_slice)).collect();
    files.iter().filter(move |file| {
        !(1..=file.module.len()).any(|n| test_modules.contains(&file.module[..n]))
    })
}

struct File {
    path: String,
    /// Module path from the crate's root; empty for `src/lib.rs`.
    module: Vec<String>,
    lines: Vec<Line>,
    tokens: Vec<Token>,
    /// `tokens` without test code.
    shipped: Vec<Token>,
    /// Modules in files of their own that this one declares for tests only.
    test_modules: Vec<Vec<String>>,
}

impl File {
    fn new(path: &str, text: &str) -> File {
        let stem =
            path.trim_start_matches(KERNELS).trim_start_matches("src/").trim_end_matches(".rs");
        let mut module: Vec<String> = stem.split('/').map(str::to_owned).collect();
        module.pop_if(|last| last == "mod" || stem == "lib");
        let lines = source::lines(text);
        let tokens = source::tokens(&lines);
        let (shipped, names) = without_tests(&tokens);
        let test_modules =
            names.into_iter().map(|n| module.iter().cloned().chain([n]).collect()).collect();
        File { path: path.to_owned(), module, lines, tokens, shipped, test_modules }
    }

    fn layer(&self) -> &str {
        self.module.first().map_or("lib", String::as_str)
    }

    fn tell(&self, found: &mut Vec<String>, line: usize, what: &str) {
        found.push(format!("{}:{}: {what}", self.path, line + 1));
    }

    fn check_uses(&self, found: &mut Vec<String>) {
        let layer = self.layer();
        if layer == "lib" {
            return;
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            return self.tell(found, 0, &format!("no row in LAYERS for `{layer}`"));
        };
        for used in self.root_names() {
            let name = used.text.as_str();
            if !LAYERS.iter().any(|(known, _)| *known == name) {
                let what = format!("`{name}` of the crate's root is no layer; name the module");
                self.tell(found, used.line, &what);
            } else if name != layer && !allowed.contains(&name) {
                self.tell(found, used.line, &format!("`{layer}` may not use `{name}`"));
            }
        }
    }

    /// Every name that follows a path to the crate's root: `crate::`, `leap::`, or enough `super::`. Importing the root
    /// itself under another name counts as `as`.
    fn root_names(&self) -> Vec<&Token> {
        let tokens = &self.shipped;
        let mut inline = Vec::new();
        let mut depth = 0;
        let mut names = Vec::new();
        for i in 0..tokens.len() {
            match text(tokens, i) {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inline.pop_if(|opened| *opened == depth);
                }
                "mod" if text(tokens, i + 2) == "{" => inline.push(depth),
                _ => {}
            }
            let starts_path = i == 0 || !["::", "."].contains(&text(tokens, i - 1));
            if let Some(end) = path_to_root(tokens, i, self.module.len() + inline.len())
                && starts_path
            {
                names.extend(names_after(tokens, end));
            }
        }
        names
    }

    fn check_terminal(&self, found: &mut Vec<String>) {
        if TERMINAL.contains(&self.layer()) {
            return;
        }
        let tokens = &self.shipped;
        for (i, token) in tokens.iter().enumerate() {
            let next = text(tokens, i + 1);
            let what = match token.text.as_str() {
                "print" | "println" | "eprint" | "eprintln" | "dbg" if next == "!" => "prints",
                "io" if names_any(tokens, i, &["stdout", "stderr"]) => "prints",
                "process" | "libc"
                    if names_any(tokens, i, &["exit", "_exit"])
                        && !LAST_WORDS.contains(&&*self.path) =>
                {
                    "ends the process"
                }
                "anyhow" => "uses anyhow",
                "Box" if boxes_an_error(tokens, i) => "hides an error's type",
                _ => continue,
            };
            self.tell(found, token.line, &format!("`{}` {what}; only `cli` may", self.layer()));
        }
    }

    fn check_json(&self, found: &mut Vec<String>) {
        const WRITERS: &[&str] =
            &["ser", "to_string", "to_string_pretty", "to_vec", "to_writer", "Serializer"];
        for (i, token) in self.shipped.iter().enumerate() {
            let writes = token.text == "serde_json" && names_any(&self.shipped, i, WRITERS);
            if writes && !self.path.starts_with(JSON_WRITER) {
                self.tell(found, token.line, "writes JSON; `format::json` does that for all");
            }
        }
    }

    fn check_unsafe(&self, found: &mut Vec<String>) {
        let may = UNSAFE.contains(&self.layer());
        for (i, token) in self.tokens.iter().enumerate() {
            let next = text(&self.tokens, i + 1);
            match token.text.as_str() {
                "unsafe" if !may => {
                    self.tell(found, token.line, &format!("unsafe code in `{}`", self.layer()));
                }
                "unsafe" if ["{", "impl"].contains(&next) && !self.is_explained(token.line) => {
                    self.tell(found, token.line, "unsafe without a SAFETY comment");
                }
                "allow" | "expect" if !may && allows_unsafe(&self.tokens, i) => {
                    self.tell(found, token.line, &format!("`{}` allows unsafe code", self.layer()));
                }
                _ => {}
            }
        }
    }

    /// True if `line`, or the lines above its statement, have a SAFETY comment.
    fn is_explained(&self, line: usize) -> bool {
        for (above, Line { code, comment }) in self.lines[..=line].iter().rev().enumerate() {
            if comment.contains("SAFETY:") {
                return true;
            }
            let code = code.trim().trim_end_matches(',');
            let is_blank = code.is_empty() && comment.is_empty();
            if above > 0 && (is_blank || code.ends_with([';', '{', '}'])) {
                return false;
            }
        }
        false
    }
}

/// The text of token `i`; empty beyond the end.
fn text(tokens: &[Token], i: usize) -> &str {
    tokens.get(i).map_or("", |t| t.text.as_str())
}

/// The index after the beginning of a path at `i`, if that beginning leads to the crate's root. The path is in a module
/// `depth` below the root.
fn path_to_root(tokens: &[Token], i: usize, depth: usize) -> Option<usize> {
    let mut end = i + 1;
    let mut left = match text(tokens, i) {
        "crate" => 0,
        "leap" if text(tokens, end) == "::" => 0,
        "self" => depth,
        "super" => depth.checked_sub(1)?,
        _ => return None,
    };
    while text(tokens, end) == "::" && text(tokens, end + 1) == "super" {
        left = left.checked_sub(1)?;
        end += 2;
    }
    // The program imports inner modules from `leap::internals`.
    if text(tokens, i) == "leap" && text(tokens, end + 1) == "internals" {
        end += 2;
    }
    (left == 0).then_some(end)
}

/// The names that continue a path at `i`: one, or the first of each branch of a group.
fn names_after(tokens: &[Token], i: usize) -> Vec<&Token> {
    match (text(tokens, i), text(tokens, i + 1)) {
        ("as", _) => vec![&tokens[i]],
        ("::", "{") => branches(&tokens[i + 1..]),
        ("::", _) => tokens.get(i + 1).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The first token of each branch of the group at the beginning of `tokens`.
fn branches(tokens: &[Token]) -> Vec<&Token> {
    let mut depth = 0;
    let mut names = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if depth == 1 && ["{", ","].contains(&text(tokens, i.wrapping_sub(1))) => {
                names.push(token);
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// True if the path that continues after `i` names one of `wanted`.
fn names_any(tokens: &[Token], i: usize, wanted: &[&str]) -> bool {
    names_after(tokens, i + 1).iter().any(|t| wanted.contains(&t.text.as_str()))
}

/// True if `Box` at `i` is a `Box<dyn Error>`, with any path.
fn boxes_an_error(tokens: &[Token], i: usize) -> bool {
    text(tokens, i + 1) == "<"
        && text(tokens, i + 2) == "dyn"
        && tokens[i + 3..]
            .iter()
            .take_while(|t| ![">", "+", "<"].contains(&t.text.as_str()))
            .last()
            .is_some_and(|t| t.text == "Error")
}

/// True if `allow(` or `expect(` at `i` is the attribute that permits unsafe code.
fn allows_unsafe(tokens: &[Token], i: usize) -> bool {
    text(tokens, i + 1) == "("
        && tokens[i..].iter().take_while(|t| t.text != ")").any(|t| t.text == "unsafe_code")
}

/// `tokens` without the items under `#[cfg(test)]`; and the names of those items that are modules in other files.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let mut shipped = Vec::new();
    let mut modules = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        if !is_test_attribute(tokens, i) {
            shipped.push(tokens[i].clone());
            i += 1;
            continue;
        }
        while text(tokens, i) == "#" {
            i = group_end(tokens, i + 1);
        }
        let end = item_end(tokens, i);
        if let [.., module, name, semicolon] = &tokens[i..end]
            && (module.text.as_str(), semicolon.text.as_str()) == ("mod", ";")
        {
            modules.push(name.text.clone());
        }
        i = end;
    }
    (shipped, modules)
}

/// True if `#[cfg(test)]`, or a `cfg` that requires it among other conditions, begins at `i`.
fn is_test_attribute(tokens: &[Token], i: usize) -> bool {
    let is_cfg = ["#", "[", "cfg", "("].iter().enumerate().all(|(n, t)| text(tokens, i + n) == *t);
    if !is_cfg {
        return false;
    }
    let condition = &tokens[i + 3..group_end(tokens, i + 3)];
    let has = |word: &str| condition.iter().any(|t| t.text == word);
    has("test") && !has("not") && !has("any")
}

/// The index after the bracket that closes the one at `i`.
fn group_end(tokens: &[Token], i: usize) -> usize {
    let mut depth = 0;
    for (n, token) in tokens.iter().enumerate().skip(i) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return n + 1;
        }
    }
    tokens.len()
}

/// The index after the item that begins at `start`: after its semicolon or its body.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut i = start;
    let mut is_use = false;
    while i < tokens.len() {
        match text(tokens, i) {
            "use" => is_use = true,
            ";" => return i + 1,
            "{" if !is_use => return group_end(tokens, i),
            // The item was the last of its block, which may be a field.
            ")" | "]" | "}" => return i,
            _ => {}
        }
        i = if ["(", "[", "{"].contains(&text(tokens, i)) { group_end(tokens, i) } else { i + 1 };
    }
    tokens.len()
}

/// The violations in a crate of one file.
fn found(path: &str, text: &str) -> Vec<String> {
    violations(&[(path.to_owned(), text.to_owned())])
}

#[test]
fn every_way_to_name_a_forbidden_layer_is_found() {
    for (path, text) in [
        ("src/quant/mod.rs", "use crate::model;"),
        ("src/quant/mod.rs", "pub use crate::model::Config;"),
        ("src/quant/mod.rs", "pub(crate) use crate::{arena as a, quant::{b, c}, model::Config};"),
        ("src/quant/mod.rs", "fn f() { let x = crate::model::load(); }"),
        ("src/quant/mod.rs", "fn f<T: crate::model::Load>() {}"),
        ("src/quant/mod.rs", "macro_rules! m { () => { $crate::model::load() } }"),
        ("src/quant/mod.rs", "use super::model;"),
        ("src/quant/mod.rs", "use self::super::model;"),
        ("src/quant.rs", "use super::{quant::Q8, model};"),
        ("src/quant/q8.rs", "fn f() { super::super::model::load() }"),
        ("src/quant/q8.rs", "mod inner { use super::super::super::model; }"),
        ("src/quant/q8.rs", "#[cfg(not(test))] use crate::model;"),
        ("src/quant/q8.rs", "#[cfg(test)] mod tests { fn f() {} } use crate::model;"),
        ("src/quant/q8.rs", "#[cfg(test)] use crate::{cli}; use crate::model;"),
        ("src/main.rs", "use leap::internals::model;"),
    ] {
        let found = found(path, text);
        let is_told = found.iter().any(|v| v.ends_with("may not use `model`"));
        assert!(is_told, "{path}: {text}: {found:?}");
    }
}

#[test]
fn rows_are_followed() {
    assert_eq!(
        found("src/format/mod.rs", "\n\nuse crate::sys;"),
        ["src/format/mod.rs:3: `format` may not use `sys`"]
    );
    assert_eq!(found("src/engine/mod.rs", "use crate::cli;").len(), 1);
    assert_eq!(found("src/cli/run.rs", "use crate::{engine, model, sys};"), [""; 0]);
    assert_eq!(found("src/engine/mod.rs", "use crate::{export, model, ring};"), [""; 0]);
    assert_eq!(found("src/main.rs", "fn main() { leap::internals::cli::main() }"), [""; 0]);
    assert_eq!(found("src/novel.rs", "").len(), 1);
    for (name, allowed) in LAYERS {
        for used in *allowed {
            assert!(LAYERS.iter().any(|(known, _)| known == used), "{name}: {used}");
        }
    }
}

#[test]
fn a_permission_is_used_outside_of_tests() {
    let idle = |text: &str| unused(&[("src/format/mod.rs".to_owned(), text.to_owned())]);
    let row = "`format` may use `quant`, and does not".to_owned();
    assert!(!idle("use crate::quant;").contains(&row));
    assert!(idle("#[cfg(test)] mod tests { use crate::quant; }").contains(&row));
    assert!(idle("// use crate::quant;").contains(&row));
}

#[test]
fn the_root_cannot_be_used_as_a_whole() {
    for text in [
        "use crate::*;",
        "use crate as all;",
        "use super as all;",
        "use crate::{self as all};",
        "use crate::Config;",
    ] {
        let found = found("src/quant.rs", text);
        assert!(found.iter().any(|v| v.contains("is no layer")), "{text}: {found:?}");
    }
}

#[test]
fn own_module_comments_strings_and_tests_are_left_alone() {
    for (path, text) in [
        ("src/quant/q8.rs", "use super::q4; pub(crate) fn f() {} pub(super) fn g() {}"),
        ("src/quant/q8.rs", "use crate::quant::q4; pub(in crate::quant) fn f() {}"),
        ("src/quant/q8.rs", "mod inner { use super::super::q4; } use self::inner::x;"),
        (
            "src/quant/q8.rs",
            "// use crate::model;\n/* crate::model */ const A: &str = \"crate::model\";",
        ),
        ("src/quant/q8.rs", "#[cfg(test)] mod tests { use crate::model; fn f() { println!() } }"),
        ("src/quant/q8.rs", "#[cfg(all(test, feature = \"tools\"))] use crate::{model, cli};"),
        ("src/quant/q8.rs", "#[cfg(test)] #[allow(x)] pub fn f() -> [u8; 2] { crate::model::f() }"),
    ] {
        assert_eq!(found(path, text), [""; 0], "{text}");
    }
}

#[test]
fn a_file_is_test_code_only_if_its_parent_says_so() {
    let tests = ("src/quant/q8/tests.rs".to_owned(), "use crate::model;".to_owned());
    let parent = |text: &str| ("src/quant/q8.rs".to_owned(), text.to_owned());
    assert_eq!(violations(&[parent("#[cfg(test)]\nmod tests;"), tests.clone()]), [""; 0]);
    assert_eq!(violations(&[parent("mod tests;"), tests]).len(), 1);
}

#[test]
fn printing_and_exiting_are_for_cli() {
    for text in [
        "fn f() { println!(\"x\") }",
        "fn f() { std::eprintln!(\"x\") }",
        "fn f() { print!(\"x\") }",
        "fn f() { dbg!(x) }",
        "fn f() { std::process::exit(1) }",
        "use std::process::{Command, exit};",
        "use std::process::exit;",
        "fn f() { libc::_exit(1) }",
        "fn f() { std::io::stdout().flush() }",
        "use std::io::{self, stderr};",
        "fn f() -> Result<(), Box<dyn Error>> {}",
        "fn f() -> Result<(), Box<dyn std::error::Error + Send>> {}",
        "fn f() -> anyhow::Result<()> {}",
    ] {
        assert_eq!(found("src/model/mod.rs", text).len(), 1, "{text}");
        assert_eq!(found("src/lib.rs", text).len(), 1, "{text}");
        assert_eq!(found("src/cli/run.rs", text), [""; 0], "{text}");
    }
    for path in LAST_WORDS {
        assert_eq!(found(path, "fn f() { libc::_exit(1) }"), [""; 0]);
        assert_eq!(found(path, "fn f() { println!(\"x\") }").len(), 1);
    }
    let fine = "fn f(print: u8, exit: u8) { g(print, exit, Box::<dyn Fn()>::from(h)) } use std::process::Command;";
    assert_eq!(found("src/model/mod.rs", fine), [""; 0]);
}

#[test]
fn json_has_one_writer() {
    for text in [
        "use serde_json::ser::Formatter;",
        "use serde_json::{Serializer, Value};",
        "fn f() { serde_json::to_string(&1) }",
    ] {
        assert_eq!(found("src/serve/answer.rs", text).len(), 1, "{text}");
        assert_eq!(found("src/format/json/value.rs", text), [""; 0], "{text}");
    }
    let fine = "use serde_json::{Value, json}; fn f() { serde_json::from_str(text) }";
    assert_eq!(found("src/serve/answer.rs", fine), [""; 0]);
}

#[test]
fn unsafe_code_has_its_places() {
    let text = "fn f() {\n    // SAFETY: sound.\n    unsafe { g() }\n}";
    assert_eq!(found("src/kernels/neon.rs", text), [""; 0]);
    assert_eq!(found("src/pool.rs", text), [""; 0]);
    assert_eq!(found("src/model/mod.rs", text).len(), 1);
    assert_eq!(found("src/cli/run.rs", text).len(), 1);
    let in_test = format!("#[cfg(test)] mod tests {{ {text} }}");
    assert_eq!(found("src/model/mod.rs", &in_test).len(), 1);
    assert_eq!(found("src/model/mod.rs", "#![allow(unsafe_code)]").len(), 1);
    assert_eq!(found("src/lib.rs", "#[expect(unsafe_code, reason = \"x\")] mod model;").len(), 1);
    assert_eq!(found("src/model/mod.rs", "#![forbid(unsafe_code)]"), [""; 0]);
}

#[test]
fn unsafe_blocks_say_why_they_are_sound() {
    for text in [
        "// SAFETY: sound.\nunsafe impl Send for A {}",
        "// SAFETY: sound,\n// in two lines.\n#[inline]\nunsafe { g() }",
        "// SAFETY: sound.\nlet x =\n    unsafe { g() };",
        "let x = unsafe { g() }; // SAFETY: sound.",
        "unsafe fn f() {} // An unsafe function has a Safety section, which clippy checks.",
    ] {
        assert_eq!(found("src/sys/mod.rs", text), [""; 0], "{text}");
    }
    for text in [
        "unsafe { g() }",
        "unsafe impl Send for A {}",
        "// Quick.\nunsafe { g() }",
        "const A: &str = \"// SAFETY: sound.\"; unsafe { g() }",
        "// SAFETY: sound.\nunsafe { g() };\nunsafe { h() };",
        "// SAFETY: sound.\nA => unsafe { g() },\nB => unsafe { h() },",
        "// SAFETY: sound.\n\nunsafe { g() }",
    ] {
        assert_eq!(found("src/sys/mod.rs", text).len(), 1, "{text}");
    }
}
