//! Names of models: `hf:ORG/REPO[:QUANT][@REVISION]` and `ollama:[HOST/][NAMESPACE/]MODEL[:TAG]`.

use std::fmt;

/// Longest name, in bytes.
const NAME_MAX: usize = 512;

/// A model's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelName {
    /// A model of Hugging Face's hub.
    Hub(HubName),
    /// A model of Ollama's registry.
    Ollama(OllamaName),
}

/// The name of a model of Hugging Face's hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubName {
    /// `ORG/REPO`; a few old repositories have no organisation.
    pub(crate) repo: String,
    /// Quantisation of a GGUF file, as in `Q4_K_M`, or the file's name.
    pub(crate) quant: Option<String>,
    /// Branch, tag or commit.
    pub(crate) revision: Option<String>,
}

/// The name of a model of Ollama's registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OllamaName {
    /// `HOST[:PORT]` of the registry.
    pub(crate) host: String,
    pub(crate) namespace: String,
    pub(crate) model: String,
    pub(crate) tag: String,
}

impl ModelName {
    /// The name that `text` spells; `None` if `text` is a path.
    ///
    /// # Errors
    /// The wrong part of a name, and its right form.
    pub(crate) fn parse(text: &str) -> Option<Result<ModelName, String>> {
        let (parsed, form) = match text.split_once(':')? {
            ("hf", name) => (HubName::parse(name).map(ModelName::Hub), HubName::FORM),
            ("ollama", name) => (OllamaName::parse(name).map(ModelName::Ollama), OllamaName::FORM),
            _ => return None,
        };
        Some(parsed.map_err(|problem| format!("{text:?}: {problem}; wanted {form}")))
    }

    /// A short name for clients of a server: the repository's last part, or Ollama's name without its registry.
    #[cfg(any(feature = "serve", test))]
    pub(crate) fn short(&self) -> String {
        match self {
            ModelName::Hub(name) => {
                let repo = name.repo.rsplit('/').next().unwrap_or_default();
                name.quant.as_ref().map_or(repo.to_owned(), |quant| format!("{repo}:{quant}"))
            }
            ModelName::Ollama(OllamaName { model, tag, .. }) if tag == "latest" => model.clone(),
            ModelName::Ollama(OllamaName { model, tag, .. }) => format!("{model}:{tag}"),
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelName::Hub(name) => name.fmt(f),
            ModelName::Ollama(name) => name.fmt(f),
        }
    }
}

impl HubName {
    const FORM: &str = "hf:ORG/REPO[:QUANT][@REVISION]";

    fn parse(text: &str) -> Result<HubName, String> {
        check_length(text)?;
        let (text, revision) = split_end(text, '@');
        let (repo, quant) = split_end(text, ':');
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() > 2 {
            return Err(format!("{repo:?} has more than one /"));
        }
        for part in parts {
            check("repository", part, ".-_", false)?;
        }
        // The cache's folders spell `/` so.
        if repo.contains("--") {
            return Err(format!("repository {repo:?} holds --"));
        }
        quant.map(check_file).transpose()?;
        revision.map(|revision| check("revision", revision, ".-_", true)).transpose()?;
        let (quant, revision) = (quant.map(str::to_owned), revision.map(str::to_owned));
        Ok(HubName { repo: repo.to_owned(), quant, revision })
    }

    /// The revision that is meant where none is named.
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

impl OllamaName {
    const FORM: &str = "ollama:[HOST/][NAMESPACE/]MODEL[:TAG]";
    /// The registry of names without a host.
    pub(crate) const HOST: &str = "registry.ollama.ai";
    /// The namespace of names without one.
    pub(crate) const NAMESPACE: &str = "library";

    fn parse(text: &str) -> Result<OllamaName, String> {
        check_length(text)?;
        let mut parts: Vec<&str> = text.split('/').collect();
        let (model, tag) = split_end(parts.pop().unwrap_or_default(), ':');
        let (host, namespace) = match parts[..] {
            [] => (OllamaName::HOST, OllamaName::NAMESPACE),
            [namespace] => (OllamaName::HOST, namespace),
            [host, namespace] => (host, namespace),
            _ => return Err("it has more than two /".to_owned()),
        };
        let tag = tag.unwrap_or("latest");
        let (name, port) = split_end(host, ':');
        check("host", name, ".-", false)?;
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(format!("host {host:?} has no port"));
        }
        check("namespace", namespace, "-_.", false)?;
        check("model", model, ".-_", false)?;
        check("tag", tag, ".-_", false)?;
        let owned = str::to_owned;
        let (host, namespace) = (owned(host), owned(namespace));
        Ok(OllamaName { host, namespace, model: owned(model), tag: owned(tag) })
    }
}

impl fmt::Display for OllamaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OllamaName { host, namespace, model, tag } = self;
        f.write_str("ollama:")?;
        match (host == OllamaName::HOST, namespace == OllamaName::NAMESPACE) {
            (true, true) => {}
            (true, false) => write!(f, "{namespace}/")?,
            (false, _) => write!(f, "{host}/{namespace}/")?,
        }
        write!(f, "{model}:{tag}")
    }
}

fn check_length(text: &str) -> Result<(), String> {
    match text.len() <= NAME_MAX {
        true => Ok(()),
        false => Err(format!("it is longer than {NAME_MAX} bytes")),
    }
}

/// `text` before and behind the last `separator`; all of `text` if it has none.
fn split_end(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.rsplit_once(separator) {
        Some((start, end)) => (start, Some(end)),
        None => (text, None),
    }
}

/// Refuses the name of a file that is none. It may have spaces and letters of any language.
fn check_file(text: &str) -> Result<(), String> {
    let is_part = |part: &str| {
        let is_plain = |c: char| !c.is_control() && c != '\\';
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
    };
    match text.split('/').all(is_part) {
        true => Ok(()),
        false => Err(format!("quantisation or file {text:?} is not valid")),
    }
}

/// Refuses a part of a name that could become another path than its own: parts are letters, digits and `others`, and do
/// not start with a dot or minus. A `path` may have several parts, with `/` between them.
fn check(what: &str, text: &str, others: &str, is_path: bool) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    let is_part = |part: &str| {
        !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(is_plain)
    };
    let is_right = match is_path {
        true => text.split('/').all(is_part),
        false => is_part(text),
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("{what} {text:?} is not valid")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ModelName, String> {
        ModelName::parse(text).unwrap()
    }

    #[test]
    fn names_are_shown_in_their_shortest_form() {
        for (text, shown) in [
            ("hf:org/repo", "hf:org/repo"),
            ("hf:gpt2", "hf:gpt2"),
            ("hf:o/r-GGUF:Q4_K_M@refs/pr/1", "hf:o/r-GGUF:Q4_K_M@refs/pr/1"),
            ("hf:o/r:sub/m-Q8_0.gguf", "hf:o/r:sub/m-Q8_0.gguf"),
            ("hf:o/r@main", "hf:o/r@main"),
            ("ollama:qwen3", "ollama:qwen3:latest"),
            ("ollama:registry.ollama.ai/library/qwen3:0.6b", "ollama:qwen3:0.6b"),
            ("ollama:me/mine", "ollama:me/mine:latest"),
            ("ollama:hf.co/o/r-GGUF:Q4_K_M", "ollama:hf.co/o/r-GGUF:Q4_K_M"),
            ("ollama:localhost:5000/library/a:b", "ollama:localhost:5000/library/a:b"),
        ] {
            assert_eq!(parsed(text).unwrap().to_string(), shown);
        }
        assert_eq!(parsed("hf:org/repo:Q8_0").unwrap().short(), "repo:Q8_0");
    }

    #[test]
    fn paths_are_no_names() {
        for text in ["model.gguf", "./hf:org/repo", "/hf:x", "C:/x", "https://x/y", "hf"] {
            assert_eq!(ModelName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        for text in [
            "hf:",
            "hf:/",
            "hf:../x",
            "hf:a/..",
            "hf:a/b/c",
            "hf:a/b:",
            "hf:a/b@",
            "hf:a/b@../x",
            "hf:a/b:../m",
            "hf:a/b:/etc",
            "hf:a--b/c",
            "hf:a/b\0",
            "hf:a/b c",
            "hf:-a/b",
            "ollama:",
            "ollama:../x",
            "ollama:a/b/c/d",
            "ollama:x:..",
            "ollama:x:",
            "ollama:h:p/n/m",
            "ollama:a\n",
        ] {
            let problem = parsed(text).unwrap_err();
            assert!(problem.contains("; wanted "), "{text}: {problem}");
        }
        assert!(parsed(&format!("hf:a/{}", "b".repeat(600))).is_err());
    }
}
