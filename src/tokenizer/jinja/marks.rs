//! Masks the characters of a text, so that they can be told from a template's.
//!
//! The mask of a character is one of the private use planes 15 and 16; the masks of their own characters are in planes
//! that Unicode does not use. White space, control characters, quotation marks and backslashes stay: templates trim white
//! space, and escape the others. So do characters of other planes, of which no special token consists.

use super::written::Written;

/// Planes whose characters are masked, and the planes of the masks.
const MASKS: [[u32; 2]; 4] = [[0, 15], [1, 16], [15, 12], [16, 13]];
const PLANE: u32 = 0x1_0000;

/// `text` with its characters masked.
pub(super) fn mask(text: &str) -> String {
    text.chars().map(|c| masked(c).unwrap_or(c)).collect()
}

fn masked(c: char) -> Option<char> {
    let stays = c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '\\');
    let [_, plane] = MASKS.iter().find(|[plane, _]| u32::from(c) / PLANE == *plane && !stays)?;
    char::from_u32(plane * PLANE + u32::from(c) % PLANE)
}

/// The character whose mask `c` is.
fn bare(c: char) -> Option<char> {
    let [plane, _] = MASKS.iter().find(|[_, mask]| u32::from(c) / PLANE == *mask)?;
    char::from_u32(plane * PLANE + u32::from(c) % PLANE)
}

/// The parts of a text that a template wrote of masked texts: characters without masks are the template's.
pub(super) fn unmasked(text: &str) -> Vec<Written> {
    let (mut parts, mut run, mut is_text) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        let own = bare(c);
        if own.is_some() != is_text && !run.is_empty() {
            parts.push(part(std::mem::take(&mut run), is_text));
        }
        is_text = own.is_some();
        run.push(own.unwrap_or(c));
    }
    if !run.is_empty() {
        parts.push(part(run, is_text));
    }
    parts
}

fn part(text: String, is_text: bool) -> Written {
    if is_text { Written::Text(text) } else { Written::Markup(text) }
}
