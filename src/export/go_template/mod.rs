//! Chat templates of Ollama's models, which are in Go's language (package `text/template`), as templates in Jinja's.
//!
//! A model of Ollama has a template beside its GGUF file. It knows `.Messages`, `.System` and `.Tools`; older ones write
//! one exchange of `.System`, `.Prompt` and `.Response`, and run once for each. Templates whose program has no
//! counterpart are refused: the file's own template is then used.

mod parse;
mod write;

use crate::tokenizer::jinja;

/// Longest template.
pub(crate) const GO_TEMPLATE_BYTES_MAX: usize = 1 << 15;

/// Whether `text` is a template in Go's language rather than in Jinja's.
pub(crate) fn is_go_template(text: &str) -> bool {
    let names = [".Messages", ".Prompt", ".System", ".Response"];
    text.contains("{{") && !text.contains("{%") && names.iter().any(|name| text.contains(name))
}

/// The template in Jinja's language that writes what `text`, in Go's, writes in Ollama. `None` if it writes the user's
/// text alone.
///
/// # Errors
/// Why there is none: the text is no template, uses what is not known here, or takes too much.
pub(crate) fn jinja(text: &str) -> Result<Option<String>, String> {
    if text.len() > GO_TEMPLATE_BYTES_MAX {
        return Err(format!("it has more than {GO_TEMPLATE_BYTES_MAX} bytes"));
    }
    let nodes = parse::parse(text)?;
    match nodes.as_slice() {
        [] => Ok(None),
        [parse::Node::Print(pipe)] if pipe.is_field("Prompt") => Ok(None),
        nodes => {
            let jinja = write::template(nodes)?;
            jinja::check(&jinja)?;
            Ok(Some(jinja))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_told_apart() {
        for text in ["{{ .Prompt }}", "{{- range .Messages }}{{ .Content }}{{ end }}"] {
            assert!(is_go_template(text), "{text}");
        }
        for text in ["", "{{ m.content }}", "{% for m in x.Messages %}{{ m.content }}{% endfor %}"]
        {
            assert!(!is_go_template(text), "{text}");
        }
    }

    #[test]
    fn templates_that_write_the_users_text_alone_are_none() {
        for text in ["", "{{ .Prompt }}", "{{- .Prompt -}}", "{{/* nothing */}}"] {
            assert_eq!(jinja(text), Ok(None), "{text}");
        }
        assert!(matches!(jinja("{{ .Prompt }}\n"), Ok(Some(_))));
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        for (text, why) in [
            ("{{ .Prompt", "\"\" stands where a tag should end"),
            ("{{ .Prompt | }}", "\"}}\" is no value"),
            ("{{ .Prompt | .System }}", "a value that is no function follows a |"),
            ("{{ .Prompt .System }}", "\".System }}\" follows a value"),
            ("{{ (.Prompt }}", "a parenthesis is not closed"),
            ("{{ .Prompt. }}", "a field has no name"),
            ("{{ \"a }}", "a text in a tag has no end"),
            ("{{ \"\\x41\" }}", "a text in a tag has an escape that is not known"),
            ("{{ /* a }}", "a comment has no end"),
            ("{{ if .Prompt }}", "a {{if}} has no end"),
            ("{{ if .Prompt }}{{ else }}", "the else of a {{if}} has no end"),
            ("{{ if .A }}{{ else if .B }}{{ end }}{{ end }}", "it has an {{end}} too many"),
            ("{{ else }}", "it has an {{else}} outside of a block"),
            ("{{ range $a, $b, $c := .Messages }}{{ end }}", "a {{range}} has three variables"),
            (
                "{{ range $a := .Messages }}{{ $a = 1 }}{{ end }}",
                "it sets $a, a variable of a loop",
            ),
            ("{{ $x }}", "$x is not defined"),
            ("{{ if $x := 1 }}{{ end }}{{ $x }}", "$x is not defined"),
            ("{{ define \"a\" }}{{ end }}", "it has a {{define}}"),
            ("{{ . }}", "it prints all that it is given"),
            ("{{ range .Messages }}{{ .Nothing }}{{ end }}", "there is no .Nothing"),
            ("{{ eq .Prompt }}", "it calls eq with 1 arguments"),
            ("{{ .Prompt | upper }}", "it calls upper with 1 arguments"),
            ("{{ printf .Prompt }}", "the form of a printf is no text of the template"),
            ("{{ printf \"%q\" .Prompt }}", "a printf has %q"),
            ("{{ printf \"%s\" }}", "a printf has 1 places for 0 values"),
        ] {
            assert_eq!(jinja(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn templates_that_nest_deeply_or_are_long_are_refused() {
        let nested = |open: &str, inner: &str, close: &str| {
            [&*open.repeat(5000), inner, &*close.repeat(5000)].concat()
        };
        for text in [
            nested("{{if .A}}", "", "{{end}}"),
            nested("{{if .A}}{{else ", "if .A}}", ""),
            format!("{{{{if .A}}}}{}{{{{end}}}}", "{{else if .A}}".repeat(4000)),
            format!("{{{{ {} }}}}", nested("(", ".Prompt", ")")),
            format!("{{{{ .Prompt{} }}}}", ".A".repeat(5000)),
            format!("{{{{ .Prompt{} }}}}", " | json".repeat(5000)),
            "a".repeat(GO_TEMPLATE_BYTES_MAX + 1),
        ] {
            assert!(jinja(&text).is_err(), "{}", &text[..40]);
        }
        // If a value were written twice at each level, the result would be endless.
        let eq = format!("{{{{ {}.Prompt{} }}}}", "eq (".repeat(90), " 1 2)".repeat(89) + " 1 2");
        let written = jinja(&eq).map(|written| written.map(|text| text.len()));
        assert!(written.is_err() || written < Ok(Some(10_000)), "{written:?}");
    }

    /// Whatever the text is, there is a template, none, or a reason.
    #[test]
    fn damaged_templates_end_nothing() {
        let whole = "{{- $x := 1 -}}{{ range $i, $m := .Messages }}{{ if and (eq .Role \"user\" `a`) \
            $.System }}{{ .Content | printf \"%s\" }}{{ else if .ToolCalls }}{{ range .ToolCalls }}{{ .Function.Arguments }}\
            {{ end }}{{ else }}{{ $x = (index $.Messages 0).Role }}{{ break }}{{ end }}{{ end }}{{/* ü */}}";
        let pieces =
            ["{{", "}}", "-", "(", "|", "\"", "`", "$", ".", " ", "end", "else", "ü", ":="];
        for (at, _) in whole.char_indices() {
            let _ = parse::parse(&whole[..at]);
            let _ = parse::parse(&whole[at..]);
            for piece in pieces {
                if let Ok(nodes) = parse::parse(&[&whole[..at], piece, &whole[at..]].concat()) {
                    let _ = write::template(&nodes);
                }
            }
        }
    }
}
