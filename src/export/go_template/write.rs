//! Writes a template of Go's language in Jinja's.

use std::fmt::Write as _;

use super::parse::{Block, Expr, Node, Pipe};

/// Longest text in one tag.
const PIECE_CHARS: usize = 2000;

/// Gathers messages as Ollama does: `g.system` has the texts of all system messages, and messages in a row of one role
/// are one, except results of tools.
const GATHER: &str = concat!(
    "{%- set g = namespace(system='', has_system=false, messages=[], prompt='', response='') -%}",
    "{%- for m in messages -%}",
    "{%- set text = m.content|default('', true) -%}",
    "{%- if m.role == 'system' -%}",
    "{%- set g.system = g.system ~ '\\n\\n' ~ text if g.has_system else text -%}",
    "{%- set g.has_system = true -%}",
    "{%- endif -%}",
    "{%- if g.messages and g.messages[-1].role == m.role and m.role != 'tool' and not m.tool_calls -%}",
    "{%- set before = g.messages[-1] -%}",
    "{%- set joined = before.content|default('', true) ~ '\\n\\n' ~ text -%}",
    "{%- set g.messages = g.messages[:-1] + [dict(before, content=joined)] -%}",
    "{%- else -%}",
    "{%- set g.messages = g.messages + [m] -%}",
    "{%- endif -%}",
    "{%- endfor -%}",
);
/// JSON as Go spells it.
const JSON: &str = concat!(
    "{%- macro json(x, sorts=false) -%}",
    "{{ x|tojson(separators=[',', ':'], sort_keys=sorts)|replace('<', '\\\\u003c')",
    "|replace('>', '\\\\u003e')|replace('&', '\\\\u0026') }}",
    "{%- endmacro -%}",
);
/// A value as Go prints it.
const SHOWN: &str = concat!(
    "{%- macro shown(x) -%}",
    "{%- if x is undefined or x is none -%}",
    "{%- elif x is string -%}{{ x }}",
    "{%- elif x is mapping or x is number or x is boolean -%}{{ json(x) }}",
    "{%- else -%}[{% for y in x %}{{ ' ' if not loop.first }}{{ shown(y) }}{% endfor %}]",
    "{%- endif -%}",
    "{%- endmacro -%}",
);

/// Values as Go prints several: with a space between two that are no texts.
const PRINTED: &str = concat!(
    "{%- macro printed(all) -%}",
    "{%- for x in all -%}",
    "{{ ' ' if not loop.first and x is not string and loop.previtem is not string }}{{ shown(x) }}",
    "{%- endfor -%}",
    "{%- endmacro -%}",
);

/// The whole template.
pub(super) fn template(nodes: &[Node]) -> Result<String, String> {
    let mut out = [JSON, SHOWN, PRINTED, GATHER, "{%- set v = namespace() -%}"].concat();
    if names(nodes, "Messages") {
        out.push_str(&body(nodes)?);
        return Ok(out);
    }
    // Templates of single exchanges get no tools.
    out.push_str("{%- set tools = [] -%}");
    let mut nodes = nodes.to_vec();
    if !names(&nodes, "Response") {
        nodes.push(Node::Print(Pipe { set: None, value: field("Response") }));
    }
    let reset = "{%- set g.system = '' -%}{%- set g.prompt = '' -%}{%- set g.response = '' -%}";
    let exchange = body(&nodes)? + reset;
    let last = body(&without_rest(&nodes, &mut false))?;
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        concat!(
            "{{%- set g.system = '' -%}}",
            "{{%- for m in g.messages -%}}",
            "{{%- if m.role == 'system' and (g.prompt or g.response) or m.role == 'user' and g.response -%}}",
            "{exchange}",
            "{{%- endif -%}}",
            "{{%- set text = m.content|default('', true) -%}}",
            "{{%- if m.role == 'system' -%}}{{%- set g.system = text -%}}",
            "{{%- elif m.role == 'user' -%}}{{%- set g.prompt = text -%}}",
            "{{%- elif m.role == 'assistant' -%}}{{%- set g.response = text -%}}",
            "{{%- endif -%}}",
            "{{%- endfor -%}}",
            "{last}",
        ),
        exchange = exchange,
        last = last,
    );
    Ok(out)
}

fn field(name: &str) -> Expr {
    Expr::Field(Box::new(Expr::Dot), name.to_owned())
}

fn body(nodes: &[Node]) -> Result<String, String> {
    let mut writer = Writer::default();
    writer.nodes(nodes, None)?;
    Ok(writer.out)
}

/// Whether a field of this name is used anywhere.
fn names(nodes: &[Node], name: &str) -> bool {
    let block = |block: &Block| {
        uses(&block.of.value, name) || names(&block.then, name) || names(&block.otherwise, name)
    };
    nodes.iter().any(|node| match node {
        Node::Text(_) | Node::Break | Node::Continue => false,
        Node::Print(pipe) | Node::Set(pipe) => uses(&pipe.value, name),
        Node::If(inner) | Node::With(inner) | Node::Range { block: inner, .. } => block(inner),
    })
}

fn uses(value: &Expr, name: &str) -> bool {
    match value {
        Expr::Field(of, field) => field == name || uses(of, name),
        Expr::Call(_, args) => args.iter().any(|arg| uses(arg, name)),
        Expr::Dot | Expr::Variable(_) | Expr::Text(_) | Expr::Word(_) => false,
    }
}

/// The nodes without all that comes behind the first `.Response` that is written, where an answer begins.
fn without_rest(nodes: &[Node], is_over: &mut bool) -> Vec<Node> {
    let mut kept = Vec::new();
    for node in nodes {
        if *is_over {
            break;
        }
        let mut block = |block: &Block| {
            let then = without_rest(&block.then, is_over);
            let otherwise = without_rest(&block.otherwise, is_over);
            Block { of: block.of.clone(), then, otherwise }
        };
        kept.push(match node {
            Node::If(inner) => Node::If(block(inner)),
            Node::With(inner) => Node::With(block(inner)),
            Node::Range { names, block: inner } => {
                Node::Range { names: names.clone(), block: block(inner) }
            }
            Node::Print(pipe) | Node::Set(pipe) => {
                *is_over |= uses(&pipe.value, "Response");
                node.clone()
            }
            Node::Text(_) | Node::Break | Node::Continue => node.clone(),
        });
    }
    kept
}

#[derive(Default)]
struct Writer {
    out: String,
    /// Number of names given so far, so that each is another.
    n_names: usize,
    /// Variables of Go in their scopes, the innermost last, and what they are here.
    variables: Vec<(String, String)>,
    /// Names here that stand for values with names for their elements.
    maps: Vec<String>,
}

/// The value that `.` stands for; `None` for the values that the template is given.
type Dot<'a> = Option<&'a str>;

impl Writer {
    /// Writes nodes; variables that they declare end with them.
    fn nodes(&mut self, nodes: &[Node], dot: Dot<'_>) -> Result<(), String> {
        let n_outer = self.variables.len();
        for node in nodes {
            match node {
                Node::Text(text) => self.text(text),
                Node::Print(pipe) => {
                    let shown = self.shown(&pipe.value, dot)?;
                    self.print(&shown);
                }
                Node::Set(pipe) => {
                    self.value(pipe, dot)?;
                }
                Node::If(block) => self.condition(block, dot, false)?,
                Node::With(block) => self.condition(block, dot, true)?,
                Node::Range { names, block } => self.range(names.as_ref(), block, dot)?,
                Node::Break => self.tag("break"),
                Node::Continue => self.tag("continue"),
            }
        }
        self.variables.truncate(n_outer);
        Ok(())
    }

    fn tag(&mut self, what: &str) {
        self.out.extend(["{%- ", what, " -%}"]);
    }

    fn print(&mut self, value: &str) {
        self.out.extend(["{{- ", value, " -}}"]);
    }

    fn text(&mut self, text: &str) {
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(PIECE_CHARS) {
            self.print(&quoted(piece.iter()));
        }
    }

    fn name(&mut self, of: &str) -> String {
        self.n_names += 1;
        format!("{of}{}", self.n_names)
    }

    /// The value of a pipe. A variable that gets it is set.
    fn value(&mut self, pipe: &Pipe, dot: Dot<'_>) -> Result<String, String> {
        let value = self.expr(&pipe.value, dot)?;
        let Some((name, is_new)) = &pipe.set else { return Ok(value) };
        if *is_new {
            // Set in a namespace, a variable keeps the value that the body of a loop gives it.
            let own = self.name("v.x");
            self.variables.push((name.clone(), own));
        }
        let own = self.variable(name)?.to_owned();
        if !own.starts_with("v.") {
            return Err(format!("it sets ${name}, a variable of a loop"));
        }
        self.tag(&format!("set {own} = {value}"));
        if self.is_map(&pipe.value, &value) {
            self.maps.push(own.clone());
        }
        Ok(own)
    }

    /// Whether a value has names for its elements; `own` is what it is here.
    fn is_map(&self, value: &Expr, own: &str) -> bool {
        let has_names = |name: &str| matches!(name, "Properties" | "Arguments" | "Defs");
        let is_named = matches!(value, Expr::Field(_, name) if has_names(name));
        is_named || self.maps.iter().any(|map| map == own)
    }

    fn variable(&self, name: &str) -> Result<&str, String> {
        let found = self.variables.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, own)| &**own).ok_or_else(|| format!("${name} is not defined"))
    }

    fn condition(&mut self, block: &Block, dot: Dot<'_>, is_with: bool) -> Result<(), String> {
        let n_outer = self.variables.len();
        let value = self.value(&block.of, dot)?;
        if is_with {
            let own = self.name("d");
            self.tag(&format!("set {own} = {value}"));
            if self.is_map(&block.of.value, &value) {
                self.maps.push(own.clone());
            }
            self.tag(&format!("if {own}"));
            self.nodes(&block.then, Some(&own))?;
        } else {
            self.tag(&format!("if {value}"));
            self.nodes(&block.then, dot)?;
        }
        if !block.otherwise.is_empty() {
            self.tag("else");
            self.nodes(&block.otherwise, dot)?;
        }
        self.tag("endif");
        self.variables.truncate(n_outer);
        Ok(())
    }

    fn range(
        &mut self,
        names: Option<&[String; 2]>,
        block: &Block,
        dot: Dot<'_>,
    ) -> Result<(), String> {
        let n_outer = self.variables.len();
        let mut over = self.value(&block.of, dot)?;
        let is_map = self.is_map(&block.of.value, &over);
        // Jinja's own else of a loop also comes behind a first turn that breaks off.
        let has_else = !block.otherwise.is_empty();
        if has_else {
            let value = std::mem::replace(&mut over, self.name("o"));
            self.tag(&format!("set {over} = {value}"));
            self.tag(&format!("if {over}"));
        }
        let [index, element] = [self.name("i"), self.name("d")];
        match is_map {
            // Go goes through a map in the order of its keys.
            true => self.tag(&format!(
                "for {index}, {element} in ({over}|default({{}}, true))|dictsort(case_sensitive=true)"
            )),
            false => {
                self.tag(&format!("for {element} in {over}|default([], true)"));
                self.tag(&format!("set {index} = loop.index0"));
            }
        }
        if let Some(names) = names {
            let own = [&index, &element];
            let named = names.iter().cloned().zip(own.into_iter().cloned());
            self.variables.extend(named.filter(|(name, _)| !name.is_empty()));
        }
        self.nodes(&block.then, Some(&element))?;
        self.variables.truncate(n_outer);
        self.tag("endfor");
        if has_else {
            self.tag("else");
            self.nodes(&block.otherwise, dot)?;
            self.tag("endif");
        }
        Ok(())
    }

    /// A value that is to be printed.
    fn shown(&self, value: &Expr, dot: Dot<'_>) -> Result<String, String> {
        let own = self.expr(value, dot)?;
        Ok(match value {
            Expr::Text(_) => own,
            Expr::Field(_, name) => match name.as_str() {
                "Role" | "Content" | "Thinking" | "Name" | "ToolName" | "ToolCallID" | "ID"
                | "System" | "Prompt" | "Response" | "ThinkLevel" => own,
                "Arguments" | "Properties" => format!("json({own}, true)"),
                "Tools" | "ToolCalls" => format!("json({own})"),
                _ => format!("shown({own})"),
            },
            Expr::Call(name, _) if matches!(&**name, "json" | "print" | "printf") => own,
            _ => format!("shown({own})"),
        })
    }

    /// Values in a text with a place for each.
    fn formatted(&self, args: &[Expr], dot: Dot<'_>) -> Result<String, String> {
        let [Expr::Text(form), rest @ ..] = args else {
            return Err("the form of a printf is no text of the template".to_owned());
        };
        let mut pieces = form.split('%');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        let mut n_places = 0;
        while let Some(piece) = pieces.next() {
            match piece.chars().next() {
                Some('s' | 'd' | 'v') => {
                    text.extend(["%s", &piece[1..]]);
                    n_places += 1;
                }
                None if form.contains("%%") => {
                    text.extend(["%%", pieces.next().unwrap_or_default()])
                }
                _ => {
                    return Err(format!(
                        "a printf has %{}",
                        piece.chars().take(3).collect::<String>()
                    ));
                }
            }
        }
        if n_places != rest.len() {
            return Err(format!("a printf has {n_places} places for {} values", rest.len()));
        }
        let rest = rest.iter().map(|arg| Ok(format!("shown({})", self.expr(arg, dot)?)));
        let rest: Vec<String> = rest.collect::<Result<_, String>>()?;
        Ok(format!(
            "({}|format({}))",
            quoted(text.chars().collect::<Vec<_>>().iter()),
            rest.join(", ")
        ))
    }

    fn expr(&self, value: &Expr, dot: Dot<'_>) -> Result<String, String> {
        Ok(match value {
            Expr::Dot => dot.ok_or("it prints all that it is given")?.to_owned(),
            Expr::Variable(name) if name.is_empty() => {
                return Err("it prints all that it is given".to_owned());
            }
            Expr::Variable(name) => self.variable(name)?.to_owned(),
            Expr::Text(text) => quoted(text.chars().collect::<Vec<_>>().iter()),
            Expr::Word(word) if word == "nil" => "none".to_owned(),
            Expr::Word(word) => word.clone(),
            Expr::Field(of, name) => match (&**of, dot) {
                (Expr::Dot, None) => given(name).to_owned(),
                (Expr::Variable(root), _) if root.is_empty() => given(name).to_owned(),
                (of, _) => member(&self.expr(of, dot)?, name)?,
            },
            Expr::Call(name, args) if name == "printf" => self.formatted(args, dot)?,
            Expr::Call(name, args) => {
                let own: Vec<String> =
                    args.iter().map(|arg| self.expr(arg, dot)).collect::<Result<_, _>>()?;
                match (name.as_str(), args.as_slice()) {
                    ("json", [arg]) if self.is_map(arg, &own[0]) => {
                        format!("json({}, true)", own[0])
                    }
                    _ => call(name, &own)?,
                }
            }
        })
    }
}

/// A value that the template is given; Go takes those that it is not given as empty.
fn given(name: &str) -> &'static str {
    match name {
        "Messages" => "g.messages",
        "System" => "g.system",
        "Tools" => "(tools|default([], true))",
        "Prompt" => "g.prompt",
        "Response" => "g.response",
        "Suffix" => "''",
        "Think" => "(enable_thinking|default(false))",
        "IsThinkSet" => "(enable_thinking is defined)",
        "ThinkLevel" => "(reasoning_effort|default(''))",
        _ => "none",
    }
}

/// A field of a message, a call or a tool.
fn member(of: &str, name: &str) -> Result<String, String> {
    let text = |name: &str| format!("({of}.{name}|default('', true))");
    Ok(match name {
        "Role" => format!("{of}.role"),
        "Content" => text("content"),
        "Thinking" => text("thinking"),
        "ToolCallID" => text("tool_call_id"),
        "Name" | "ToolName" => text("name"),
        "ID" => text("id"),
        "Description" => text("description"),
        "Images" => "[]".to_owned(),
        "ToolCalls" => format!("({of}.tool_calls|default([], true))"),
        "Required" | "Enum" | "AnyOf" => {
            let name = if name == "AnyOf" { "anyOf" } else { &name.to_ascii_lowercase() };
            format!("({of}.{name}|default([], true))")
        }
        "Function" | "Arguments" | "Parameters" | "Properties" | "Items" => {
            format!("({of}.{}|default({{}}, true))", name.to_ascii_lowercase())
        }
        "Type" | "Index" => format!("{of}.{}", name.to_ascii_lowercase()),
        other => return Err(format!("there is no .{other}")),
    })
}

fn call(name: &str, args: &[String]) -> Result<String, String> {
    let compare = |sign: &str| match args {
        [a, b] => Ok(format!("({a} {sign} {b})")),
        _ => Err(format!("{name} has {} arguments", args.len())),
    };
    let joined = |sign: &str| format!("({})", args.join(sign));
    Ok(match (name, args) {
        ("and" | "or", [_, ..]) => joined(&format!(" {name} ")),
        ("not", [a]) => format!("(not {a})"),
        ("len", [a]) => format!("({a}|length)"),
        ("eq", [a, rest @ ..]) if !rest.is_empty() => {
            format!("({a} in [{}])", rest.join(", "))
        }
        ("ne", _) => compare("!=")?,
        ("lt", _) => compare("<")?,
        ("le", _) => compare("<=")?,
        ("gt", _) => compare(">")?,
        ("ge", _) => compare(">=")?,
        ("index", [of, keys @ ..]) => {
            let keys: String = keys.iter().map(|key| format!("[{key}]")).collect();
            format!("(({of}){keys}|default(''))")
        }
        ("slice", [of]) => of.clone(),
        ("slice", [of, from]) => format!("({of})[{from}:]"),
        ("slice", [of, from, to]) => format!("({of})[{from}:{to}]"),
        ("json", [a]) => format!("json({a})"),
        ("print", all) => format!("printed([{}])", all.join(", ")),
        ("currentDate", []) => "strftime_now('%Y-%m-%d')".to_owned(),
        _ => return Err(format!("it calls {name} with {} arguments", args.len())),
    })
}

/// A text in quotation marks.
fn quoted<'a>(text: impl Iterator<Item = &'a char>) -> String {
    let mut out = "\"".to_owned();
    for c in text {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '"' | '\\' => out.extend(['\\', *c]),
            c => out.push(*c),
        }
    }
    out.push('"');
    out
}
