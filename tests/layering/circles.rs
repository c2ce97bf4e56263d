//! Circles between files: each file uses only files below it, so that it can be read without its users.
//!
//! A file uses another if it names an item of it, through any re-exports. A `pub use` alone does not count: a module's
//! first file may re-export its children's items, but items that the children need belong below both.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Token;
use super::{File, group_end, text};

/// Longest chain of re-exports.
const HOPS_MAX: usize = 8;

/// For each pair of files, the names that the first takes from the second.
type Uses<'f> = BTreeMap<&'f str, BTreeMap<&'f str, BTreeSet<String>>>;

/// The circles among `files`, one line each.
pub(crate) fn circles<'f>(files: impl Iterator<Item = &'f File>) -> Vec<String> {
    let tree = Tree::new(files);
    let uses = tree.uses();
    let mut told = BTreeSet::new();
    let mut found = Vec::new();
    for &file in uses.keys() {
        let circle: BTreeSet<&str> = reached(&uses, file)
            .into_iter()
            .filter(|other| reached(&uses, other).contains(file))
            .collect();
        if circle.contains(file) && told.insert(circle.clone()) {
            found.push(description(&uses, &circle));
        }
    }
    found
}

/// The files that `file` uses, directly or through others.
fn reached<'f>(uses: &Uses<'f>, file: &str) -> BTreeSet<&'f str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = vec![file];
    while let Some(next) = open.pop() {
        for &other in uses.get(next).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(other) {
                open.push(other);
            }
        }
    }
    reached
}

fn description(uses: &Uses<'_>, circle: &BTreeSet<&str>) -> String {
    let mut text = "a circle of files:".to_owned();
    for (from, others) in uses.iter().filter(|(from, _)| circle.contains(*from)) {
        for (to, names) in others.iter().filter(|(to, _)| circle.contains(*to)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text += &format!("\n    {from} uses {} of {to}", names.join(", "));
        }
    }
    text
}

/// A path of names: modules, then perhaps an item.
type Names = Vec<String>;

/// One name that a `use` brings into a file.
struct Import {
    name: String,
    path: Names,
    /// True if other files may take the name from here.
    is_export: bool,
}

struct Module<'f> {
    file: &'f File,
    imports: Vec<Import>,
}

/// The crate's modules that are files.
struct Tree<'f>(BTreeMap<&'f [String], Module<'f>>);

impl<'f> Tree<'f> {
    fn new(files: impl Iterator<Item = &'f File>) -> Tree<'f> {
        let module = |file: &'f File| Module { file, imports: imports(&file.shipped) };
        Tree(files.map(|file| (file.module.as_slice(), module(file))).collect())
    }

    fn uses(&self) -> Uses<'f> {
        let mut uses = Uses::new();
        for module in self.0.values() {
            for path in paths(&module.file.shipped) {
                let Some(names) = self.absolute(module, &path) else { continue };
                let Some((other, name)) = self.item(names, HOPS_MAX) else { continue };
                if other.path != module.file.path {
                    let others = uses.entry(module.file.path.as_str()).or_default();
                    others.entry(other.path.as_str()).or_default().insert(name);
                }
            }
        }
        uses
    }

    /// `path` in `module`, from the crate's root; `None` if it leads to another crate.
    fn absolute(&self, module: &Module<'f>, path: &[String]) -> Option<Names> {
        let here = &module.file.module;
        let (first, mut rest) = path.split_first()?;
        let mut names = match first.as_str() {
            "crate" | "leap" => Names::new(),
            "self" => here.clone(),
            "super" => here[..here.len().checked_sub(1)?].to_vec(),
            child if self.0.contains_key([here, &[child.to_owned()][..]].concat().as_slice()) => {
                [here, &[child.to_owned()][..]].concat()
            }
            name => {
                let is_it = |import: &&Import| import.name == name && import.path[0] != name;
                let import = module.imports.iter().find(is_it)?;
                self.absolute(module, &import.path)?
            }
        };
        while rest.first().is_some_and(|name| name == "super") {
            names.pop()?;
            rest = &rest[1..];
        }
        names.extend_from_slice(rest);
        Some(names)
    }

    /// The file that defines the item at `names`, and the item's name there; `None` if it is a module.
    fn item(&self, names: Names, hops: usize) -> Option<(&'f File, String)> {
        let depth = (0..=names.len()).rev().find(|&n| self.0.contains_key(&names[..n]))?;
        let (module, rest) = (&self.0[&names[..depth]], &names[depth..]);
        let name = rest.first()?;
        let export = module.imports.iter().find(|import| import.is_export && import.name == *name);
        let target = export.and_then(|export| self.absolute(module, &export.path));
        match target {
            Some(mut target) if hops > 0 => {
                target.extend_from_slice(&rest[1..]);
                self.item(target, hops - 1)
            }
            _ => Some((module.file, name.clone())),
        }
    }
}

/// Names that the `use` declarations among `tokens` bring in.
fn imports(tokens: &[Token]) -> Vec<Import> {
    let mut imports = Vec::new();
    for i in (0..tokens.len()).filter(|&i| is_declaration(tokens, i)) {
        let is_export = i > 0 && ["pub", ")"].contains(&text(tokens, i - 1));
        let mut found = Vec::new();
        branches(tokens, i + 1, &Names::new(), &mut found);
        let named = found.into_iter().map(|(name, path)| Import { name, path, is_export });
        imports.extend(named);
    }
    imports
}

/// True if the `use` at `i` begins a declaration; it may also list the captures of an `impl Trait`.
fn is_declaration(tokens: &[Token], i: usize) -> bool {
    text(tokens, i) == "use" && text(tokens, i + 1) != "<"
}

/// Collects the names that the tree of a `use` at `i` ends in, with their paths; returns the index after the tree.
fn branches(
    tokens: &[Token],
    mut i: usize,
    before: &Names,
    found: &mut Vec<(String, Names)>,
) -> usize {
    let mut path = before.clone();
    loop {
        match text(tokens, i) {
            "{" => {
                let end = group_end(tokens, i);
                i += 1;
                while i + 1 < end {
                    i = branches(tokens, i, &path, found);
                    i += usize::from(text(tokens, i) == ",");
                }
                return end;
            }
            "::" => {
                i += 1;
                continue;
            }
            "*" => return i + 1,
            "self" if !path.is_empty() => i += 1,
            name => {
                path.push(name.to_owned());
                i += 1;
            }
        }
        if text(tokens, i) == "as" {
            found.push((text(tokens, i + 1).to_owned(), path));
            return i + 2;
        }
        if text(tokens, i) != "::" {
            found.push((path.last().cloned().unwrap_or_default(), path));
            return i;
        }
    }
}

/// Every path in `tokens`: those that private `use` declarations end in, and those in code.
fn paths(tokens: &[Token]) -> Vec<Names> {
    let mut paths = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        if is_declaration(tokens, i) {
            let is_export = i > 0 && ["pub", ")"].contains(&text(tokens, i - 1));
            let mut found = Vec::new();
            i = branches(tokens, i + 1, &Names::new(), &mut found);
            if !is_export {
                paths.extend(found.into_iter().map(|(_, path)| path));
            }
            continue;
        }
        let starts = i == 0 || !["::", "."].contains(&text(tokens, i - 1));
        let mut path = Names::new();
        if starts && text(tokens, i + 1) == "::" {
            path.push(text(tokens, i).to_owned());
            while text(tokens, i + 1) == "::" && is_name(text(tokens, i + 2)) {
                path.push(text(tokens, i + 2).to_owned());
                i += 2;
            }
        }
        if path.len() > 1 {
            paths.push(path);
        }
        i += 1;
    }
    paths
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The circles in a crate of these files (path, text).
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    circles(files.iter())
}

#[test]
fn files_that_use_each_other_are_found() {
    for (a, b) in [
        ("use super::b::B; struct A;", "use super::a::A; struct B;"),
        ("use crate::m::b::{self, C}; struct A;", "fn f() { super::a::A::new() } struct C;"),
        ("fn f() -> super::b::B {} struct A;", "use crate::m; fn f() { m::a::A::new() }"),
        ("use super::B as Other; struct A;", "use super::A; struct B;"),
        ("use super::{a::X, B}; struct A;", "use {super::{A}, std::fmt}; struct B;"),
    ] {
        let files = [
            ("src/m/mod.rs", "mod a; mod b; pub use a::A; pub(crate) use b::{B, B as D};"),
            ("src/m/a.rs", a),
            ("src/m/b.rs", b),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 1, "{a} {b}: {found:?}");
        assert!(found[0].contains("src/m/a.rs uses B") || found[0].contains("uses C"), "{found:?}");
    }
}

#[test]
fn a_child_that_uses_what_its_parent_defines_is_found() {
    let child = ("src/m/a.rs", "use super::{B, Word}; struct A;");
    let parent = |text: &'static str| ("src/m/mod.rs", text);
    let uses = "mod a; mod b; use a::A; pub use b::B; struct Word; fn f() -> A {}";
    let other = ("src/m/b.rs", "struct B;");
    assert_eq!(found(&[parent(uses), child, other]).len(), 1);
    let offers = "mod a; mod b; pub use a::A; pub use b::B; struct Word;";
    assert_eq!(found(&[parent(offers), child, other]), [""; 0]);
}

#[test]
fn test_code_and_re_exports_make_no_circle() {
    let a = "struct A; #[cfg(test)] mod tests { use super::super::b::B; }";
    let files = [
        ("src/m.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
        ("src/m/a.rs", a),
        ("src/m/b.rs", "use super::A; fn f() -> impl Iterator<Item = A> + use<> {} struct B;"),
    ];
    assert_eq!(found(&files), [""; 0]);
}
