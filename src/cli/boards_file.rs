//! `--boards FILE`: the columns of its lines say which of the older options the file stands for.

use std::fs;
use std::path::Path;

use super::Failure;
use crate::format::text_without_mark;

/// Columns in the lines of a file of boards.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// Layers: it is a ring file.
    Layers,
    /// Shares: it is a team file.
    Shares,
    /// Neither: a master calls these boards, as with `--boards LIST`, under the name that the file may give it.
    Called { list: String, master: Option<String> },
}

/// True if a value of `--boards` names a file. A path has a `/`, which no address has; a name without a `/` but with a
/// dot is a file if it exists.
pub(super) fn is_file(value: &str) -> bool {
    value.contains('/') || (value.contains('.') && Path::new(value).is_file())
}

/// Reads the file's columns.
pub(super) fn read(path: &str) -> Result<Lines, Failure> {
    let text = fs::read_to_string(path).map_err(|e| Failure::unreadable(path.as_ref(), &e))?;
    lines(text_without_mark(&text)).map_err(|what| Failure::Input(format!("{path}: {what}")))
}

fn lines(text: &str) -> Result<Lines, String> {
    let bare = text.lines().map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    let lines: Vec<Vec<&str>> =
        bare.map(Iterator::collect).filter(|words: &Vec<&str>| !words.is_empty()).collect();
    let is_share = |words: &[&str]| words.len() == 3 && words[2].parse::<u64>().is_ok();
    if lines.iter().any(|words| words.len() > 2 && !is_share(words)) {
        return Ok(Lines::Layers);
    }
    if lines.iter().any(|words| is_share(words)) {
        return Ok(Lines::Shares);
    }
    let n_names = lines.iter().filter(|words| words.len() == 2).count();
    let (master, called) = match lines.split_first() {
        Some((first, others)) if n_names == lines.len() => (Some(first[0].to_owned()), others),
        Some(_) if n_names == 0 => (None, &lines[..]),
        Some(_) => return Err("some lines have a name and others have none".to_owned()),
        None => (None, &[][..]),
    };
    let called: Vec<&str> = called.iter().filter_map(|words| words.last().copied()).collect();
    match called.is_empty() {
        true => Err("there is no board to call in it".to_owned()),
        false => Ok(Lines::Called { list: called.join(","), master }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_layers_shares_or_neither_are_told_apart() {
        assert_eq!(
            lines("# x\ndesk 10.0.0.1 0..6\npi 10.0.0.2 6..12 threads=2"),
            Ok(Lines::Layers)
        );
        let place = "desk 10.0.0.1 0..6\nteam desk 10.0.0.1 40\nteam pi 10.0.0.2";
        assert_eq!(lines(place), Ok(Lines::Layers));
        assert_eq!(lines("desk 10.0.0.1 40\npi 10.0.0.2"), Ok(Lines::Shares));
        let called = |list: &str, master: Option<&str>| {
            Ok(Lines::Called { list: list.to_owned(), master: master.map(str::to_owned) })
        };
        let names = "desk 10.0.0.1\npi 10.0.0.2 # in the cellar\n\nfig [fd00::3]:7000";
        assert_eq!(lines(names), called("10.0.0.2,[fd00::3]:7000", Some("desk")));
        assert_eq!(lines("pi.local\n10.0.0.3:7000\n"), called("pi.local,10.0.0.3:7000", None));
        for bad in ["", "# nobody", "desk 10.0.0.1", "desk 10.0.0.1\n10.0.0.2"] {
            assert!(lines(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_without_a_dot_or_slash_is_a_board() {
        assert!(!is_file("pi") && !is_file("auto") && !is_file("10.0.0.2,10.0.0.3"));
        assert!(is_file("/no/boards") && is_file("Cargo.toml"));
    }
}
