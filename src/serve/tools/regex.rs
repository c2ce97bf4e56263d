//! Patterns and formats of strings as regular expressions of a whole text.

/// Most groups in groups that are looked into. Anchors deeper inside are refused later.
const GROUPS_MAX: usize = 20;

/// A text that has `pattern` in it, as JSON Schema means it: anywhere, unless `^` and `$` say otherwise.
pub(super) fn anchored(pattern: &str) -> String {
    anchored_within(pattern, GROUPS_MAX)
}

fn anchored_within(pattern: &str, n_groups: usize) -> String {
    let one = |part: &str| {
        if n_groups > 0
            && let Some(inner) = group(part)
        {
            return format!("(?:{})", anchored_within(inner, n_groups - 1));
        }
        let (start, part) = match part.strip_prefix('^') {
            Some(part) => ("", part),
            None => (ANY, part),
        };
        let (end, part) = match part.strip_suffix('$').filter(|part| !ends_in_escape(part)) {
            Some(part) => ("", part),
            None => (ANY, part),
        };
        format!("{start}(?:{part}){end}")
    };
    parts(pattern).into_iter().map(one).collect::<Vec<_>>().join("|")
}

const ANY: &str = "(?s:.*)";

/// Whether the character behind `text` is escaped.
fn ends_in_escape(text: &str) -> bool {
    text.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// The inside of a pattern that is one group.
fn group(pattern: &str) -> Option<&str> {
    let inner = pattern.strip_prefix('(')?.strip_suffix(')')?;
    let inner = inner.strip_prefix("?:").unwrap_or(inner);
    let outer: Vec<_> = depths(pattern).into_iter().filter(|(.., depth)| *depth == 0).collect();
    (!inner.starts_with('?') && outer == [(pattern.len() - 1, ')', 0)]).then_some(inner)
}

/// The parts of a pattern between which a text may choose.
fn parts(pattern: &str) -> Vec<&str> {
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, c, depth) in depths(pattern) {
        if c == '|' && depth == 0 {
            parts.push(&pattern[start..at]);
            start = at + 1;
        }
    }
    parts.push(&pattern[start..]);
    parts
}

/// Where a pattern's bars and closing brackets stand, and in how many groups.
fn depths(pattern: &str) -> Vec<(usize, char, usize)> {
    let (mut found, mut depth, mut is_class, mut is_escaped) = (Vec::new(), 0_usize, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => is_class = false,
            _ if is_class => {}
            '[' => is_class = true,
            '(' => depth += 1,
            ')' => {
                depth = depth.saturating_sub(1);
                found.push((at, c, depth));
            }
            '|' => found.push((at, c, depth)),
            _ => {}
        }
    }
    found
}

/// The texts of a format; `None` if it is unknown.
pub(super) fn of_format(name: &str) -> Option<String> {
    const DATE: &str = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
                        |02-(0[1-9]|1[0-9]|2[0-9]))";
    const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const LABEL: &str = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    let host = || format!(r"{LABEL}(\.{LABEL})*");
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}[tT]{TIME}"),
        "duration" => {
            const TIMES: &str = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
            format!(
                "P(([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)({TIMES})?|{TIMES}|[0-9]+W)"
            )
        }
        "uuid" => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "ipv4" => format!(r"{BYTE}(\.{BYTE}){{3}}"),
        "ipv6" => {
            const GROUP: &str = "[0-9a-fA-F]{1,4}";
            let short = |n: usize| format!("({GROUP}:){{1,{}}}(:{GROUP}){{1,{n}}}", 7 - n);
            let all: Vec<String> = (1..=6).map(short).collect();
            let [first, last] = [format!("({GROUP}:){{1,7}}:"), format!(":((:{GROUP}){{1,7}}|:)")];
            format!("({GROUP}:){{7}}{GROUP}|{}|{first}|{last}", all.join("|"))
        }
        "hostname" => host(),
        "email" => {
            const ATOM: &str = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+";
            format!(r"{ATOM}(\.{ATOM})*@{}", host())
        }
        "uri" => {
            const CHAR: &str = r"([a-zA-Z0-9\-._~!$&'()*+,;=:@/]|%[0-9a-fA-F]{2})";
            format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:{CHAR}*(\?({CHAR}|\?)*)?(#({CHAR}|\?)*)?")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_anywhere_unless_it_says_where() {
        for (pattern, wanted) in [
            ("a", "(?s:.*)(?:a)(?s:.*)"),
            ("^a+$", "(?:a+)"),
            ("^a|b$|c", "(?:a)(?s:.*)|(?s:.*)(?:b)|(?s:.*)(?:c)(?s:.*)"),
            ("(^a$|(?:^b))", "(?:(?:a)|(?:(?:b)(?s:.*)))"),
            ("(a)(b)", "(?s:.*)(?:(a)(b))(?s:.*)"),
            (r"^[|(]\$", r"(?:[|(]\$)(?s:.*)"),
            (r"^\\$", r"(?:\\)"),
        ] {
            assert_eq!(anchored(pattern), wanted, "{pattern}");
        }
    }

    #[test]
    fn groups_in_groups_take_little_stack_and_time() {
        let pattern = ["(".repeat(500_000), ")".repeat(500_000)].concat();
        assert!(anchored(&pattern).len() < pattern.len() + 100);
    }
}
