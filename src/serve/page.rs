//! The chat page: one document, made of the files in `page/`. It loads nothing else, and its policy makes the browser
//! refuse everything else.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::http::Reply;

const DOCUMENT: &str = concat!(
    include_str!("page/head.html"),
    "<style>",
    include_str!("page/page.css"),
    "</style>\n",
    include_str!("page/body.html"),
    "<script type=\"module\">",
    include_str!("page/markdown.js"),
    include_str!("page/store.js"),
    include_str!("page/server.js"),
    include_str!("page/panel.js"),
    include_str!("page/chat.js"),
    include_str!("page/main.js"),
    "</script>\n</body>\n</html>\n"
);

/// Fields of the head. Only the style and script with these hashes apply (Content Security Policy 3), requests go only
/// to this server, and no script may turn text into elements (Trusted Types).
static FIELDS: LazyLock<String> = LazyLock::new(|| {
    let style = hash_of(between(DOCUMENT, "<style>", "</style>"));
    let script = hash_of(between(DOCUMENT, "<script type=\"module\">", "</script>"));
    format!(
        "Content-Security-Policy: default-src 'none'; style-src {style}; script-src {script}; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\r\n\
         Referrer-Policy: no-referrer\r\nCache-Control: no-cache\r\nVary: Accept\r\n"
    )
});

/// `GET /` of a browser.
pub(super) fn page() -> Reply {
    let reply = Reply::text("text/html; charset=utf-8", DOCUMENT);
    Reply { fields: &FIELDS, ..reply }
}

/// The part of `text` between the first `start` and the next `end`.
fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let behind = text.split_once(start).map_or("", |parts| parts.1);
    behind.split_once(end).map_or("", |parts| parts.0)
}

/// The hash of a style or script, as a policy names it.
fn hash_of(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document_with_one_style_and_one_script() {
        for (start, end) in [("<style>", "</style>"), ("<script", "</script")] {
            assert_eq!(DOCUMENT.matches(start).count(), 1, "{start}");
            assert_eq!(DOCUMENT.matches(end).count(), 1, "{end}");
        }
        assert!(DOCUMENT.len() < 52_000, "{} bytes", DOCUMENT.len());
        // No script turns text into elements, and nothing is loaded.
        for name in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "src="]
        {
            assert!(!DOCUMENT.contains(name), "{name}");
        }
    }
}
