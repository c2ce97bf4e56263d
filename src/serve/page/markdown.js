
// Markdown as models write it. Elements are made one by one and text only ever becomes text, so nothing that a model says can be
// anything else; every scan goes forward, so that no text takes long.

/** How deep quotes, lists and emphasis may lie in each other; what lies deeper is shown as it was written. */
const DEPTH_MAX = 8;
/** Longest text between two marks. */
const SPAN_MAX = 2000;

/** Most lines of a formula. */
const FORMULA_LINES_MAX = 50;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const TABLE_LINE = /^\|?( *:?-+:? *\|)* *:?-+:? *(\| *)?$/;

/** An element with these properties and children. */
function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** Shows `text` in `place`. Blocks that are as they were keep their elements, and what is selected there. */
function showMarkdown(place, text) {
  const blocks = blocksOf(text.split(/\r?\n/));
  blocks.forEach((block, index) => {
    const source = block.kind + block.lines.join('\n');
    const old = place.children[index];
    if (old?.source === source) return;
    const element = blockElement(block, 0);
    element.source = source;
    if (old) old.replaceWith(element);
    else place.append(element);
  });
  while (place.children.length > blocks.length) place.lastElementChild.remove();
}

/** Divides lines into blocks: `kind`, the `lines` without the block's marks, and what else the kind needs. */
function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const block = fence(lines, at) ?? formulaBlock(lines, at) ?? oneLine(lines[at]) ?? quote(lines, at) ?? list(lines, at) ?? table(lines, at) ?? paragraph(lines, at);
    if (block.kind !== 'empty') blocks.push(block);
    at += block.taken;
  }
  return blocks;
}

function fence(lines, at) {
  const [, marks, language] = FENCE.exec(lines[at]) ?? [];
  if (!marks) return null;
  let end = at + 1;
  const closes = (line) => line.trim().length >= marks.length && line.trim() === marks[0].repeat(line.trim().length);
  while (end < lines.length && !closes(lines[end])) end++;
  return { kind: 'code', language, lines: lines.slice(at + 1, end), taken: end + 1 - at };
}

/** A formula on lines of its own is shown as it was written: nothing in it is Markdown. */
function formulaBlock(lines, at) {
  const opens = lines[at].trimStart();
  const [mark, close] = marksAt(opens, 0) ?? [];
  if (!mark || mark === '\\(') return null;
  for (let end = at, from = mark.length; end < Math.min(lines.length, at + FORMULA_LINES_MAX); end++, from = 0) {
    const line = end === at ? opens : lines[end];
    const found = line.indexOf(close, from);
    if (found >= 0) return line.slice(found + close.length).trim() ? null : { kind: 'formula', lines: lines.slice(at, end + 1), taken: end + 1 - at };
  }
  return null;
}

function oneLine(line) {
  if (line.trim() === '') return { kind: 'empty', lines: [], taken: 1 };
  if (RULE.test(line)) return { kind: 'rule', lines: [line], taken: 1 };
  const [, marks, title] = HEADING.exec(line) ?? [];
  return marks ? { kind: 'heading' + marks.length, level: marks.length, lines: [title], taken: 1 } : null;
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
  if (end === at) return null;
  return { kind: 'quote', lines: lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, '')), taken: end - at };
}

/** A list goes on as long as there are items, lines that are indented, and lines that go on with a paragraph. */
function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const isOrdered = (item) => /\d/.test(item[2]);
  const items = [];
  let end = at;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const depth = line.length - line.trimStart().length;
    const last = items.at(-1);
    if (item && depth < (last?.indent ?? Infinity) && isOrdered(item) === isOrdered(first) && !RULE.test(line)) {
      items.push({ indent: item[1].length + item[2].length + 1, lines: [item[4]] });
    } else if (line.trim() === '') {
      const next = lines[end + 1] ?? '';
      if (!ITEM.test(next) && !/^ {2,}\S/.test(next)) break;
      last.lines.push('');
    } else if (last && (depth >= Math.min(last.indent, 2) || (last.lines.at(-1) !== '' && paragraphGoesOn(line)))) {
      last.lines.push(line.slice(Math.min(depth, last.indent)));
    } else {
      break;
    }
  }
  const start = parseInt(first[2], 10);
  return { kind: isOrdered(first) ? 'ol' : 'ul', start, items, lines: lines.slice(at, end), taken: Math.max(end - at, 1) };
}

function table(lines, at) {
  if (!lines[at].includes('|') || !TABLE_LINE.test(lines[at + 1]?.trim() ?? '')) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes('|')) end++;
  return { kind: 'table', lines: lines.slice(at, end), taken: end - at };
}

const paragraphGoesOn = (line) => line.trim() !== '' && !FENCE.test(line) && !HEADING.test(line) && !RULE.test(line) && !ITEM.test(line) && !/^ {0,3}>|^\s*(\\\[|\$\$|\\begin\{)/.test(line);

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && paragraphGoesOn(lines[end]) && !table(lines, end)) end++;
  return { kind: 'text', lines: lines.slice(at, end), taken: end - at };
}

function blockElement(block, depth) {
  const text = block.lines.join('\n');
  switch (block.kind) {
    case 'code': return codeElement(text, block.language);
    case 'rule': return make('hr');
    case 'formula': return make('pre', { className: 'formula', tabIndex: 0 }, text);
    case 'table': return tableElement(block.lines, depth);
    case 'quote': return depth < DEPTH_MAX ? make('blockquote', {}, ...within(block.lines, depth)) : make('p', {}, text);
    case 'ol':
    case 'ul': {
      if (depth >= DEPTH_MAX) return make('p', {}, text);
      const items = block.items.map((item) => make('li', {}, ...itemParts(item.lines, depth)));
      return make(block.kind, block.kind === 'ol' ? { start: block.start } : {}, ...items);
    }
    case 'text': return make('p', {}, ...inline(text, depth));
    // The page has headings of its own above these.
    default: return make('h' + Math.min(block.level + 2, 6), {}, ...inline(text, depth));
  }
}

const within = (lines, depth) => blocksOf(lines).map((block) => blockElement(block, depth + 1));

/** The contents of an item; one paragraph alone stands without its element, close to its neighbours. */
function itemParts(lines, depth) {
  const [, mark, rest] = /^\[([ xX])\] +(.*)$/.exec(lines[0]) ?? [];
  const parts = within(mark ? [rest, ...lines.slice(1)] : lines, depth);
  if (parts[0]?.localName === 'p' && parts.slice(1).every((part) => part.localName !== 'p')) parts.splice(0, 1, ...parts[0].childNodes);
  if (!mark) return parts;
  const box = make('input', { type: 'checkbox', disabled: true, defaultChecked: mark !== ' ' });
  box.setAttribute('aria-label', mark === ' ' ? 'To do' : 'Done');
  return [box, ...parts];
}

function codeElement(text, language) {
  const copy = make('button', { type: 'button', textContent: 'Copy' });
  copy.addEventListener('click', () => copyText(text, copy));
  const pre = make('pre', { tabIndex: 0 }, make('code', {}, ...highlighted(text, language)));
  pre.setAttribute('aria-label', language ? `Code: ${language}` : 'Code');
  return make('div', { className: 'code' }, pre, copy);
}

/** Longest code that is coloured. */
const COLOURED_MAX = 20000;
const KEYWORDS = new Set(`abstract and as assert async await begin bool boolean break byte case catch char class const continue crate def default
defer del delete do done double elif else elsif end enum esac except export extends extern false fi final finally float fn for from func function
global go goto if impl implements import in include inline instanceof int interface is lambda let local long loop match mod module move mut namespace
new nil None not null nullptr of or package pass private protected pub public raise ref return select self short signed sizeof static string struct
super switch template then this throw throws trait true True False try type typedef typeof undefined union unless unsafe unsigned until use using
var virtual void volatile when where while with yield`.split(/\s+/));
const HASH_COMMENTS = /^(py|python|sh|bash|zsh|shell|console|ruby|rb|perl|r|ya?ml|toml|make(file)?|docker(file)?|conf|ini|nginx|elixir)$/i;
const DASH_COMMENTS = /^(sql|lua|haskell|hs|ada)$/i;
const BODY = String.raw`("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|${'`'}(?:[^${'`'}\\]|\\.)*${'`'})|(\b\d[\w.]*)|([A-Za-z_]\w*)`;

/** Code as nodes: comments, strings, numbers and words of most languages, each in its colour. */
function highlighted(text, language) {
  if (!language || /^(te?xt|plain|markdown|md|diff|output|console)$/i.test(language) || text.length > COLOURED_MAX) return [text];
  const comment = HASH_COMMENTS.test(language) ? '#[^\\n]*' : DASH_COMMENTS.test(language) ? '--[^\\n]*' : /^(html|xml|svg)$/i.test(language) ? '<!--(?:[^]*?-->|[^]*$)' : '//[^\\n]*|/\\*(?:[^]*?\\*/|[^]*$)';
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(new RegExp(`(${comment})|${BODY}`, 'g'))) {
    const [all, note, quoted, number, word] = found;
    const kind = note ? 'note' : quoted ? 'quoted' : number ? 'number' : KEYWORDS.has(word) ? 'keyword' : null;
    if (!kind) continue;
    nodes.push(text.slice(end, found.index), make('span', { className: `c-${kind}` }, all));
    end = found.index + all.length;
  }
  return [...nodes, text.slice(end)];
}

function tableElement(lines, depth) {
  const cells = (line) => line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((cell) => cell.trim());
  const row = (name) => (line) => make('tr', {}, ...cells(line).map((cell) => make(name, {}, ...inline(cell, depth))));
  const head = make('thead', {}, row('th')(lines[0]));
  return make('div', { className: 'scroll' }, make('table', {}, head, make('tbody', {}, ...lines.slice(2).map(row('td')))));
}

/** Emphasis, code and links of a paragraph, as nodes. */
function inline(text, depth) {
  const nodes = [];
  let plain = '';
  const flush = () => {
    plain.split('\n').forEach((line, index) => nodes.push(...(index ? [make('br')] : []), line));
    plain = '';
  };
  for (let at = 0; at < text.length;) {
    const found = depth < DEPTH_MAX && (codeSpan(text, at) ?? formula(text, at) ?? emphasis(text, at, depth) ?? link(text, at, depth) ?? address(text, at));
    if (found) {
      flush();
      nodes.push(found.node);
      at = found.end;
    } else {
      if (text[at] === '\\' && /[\\`*_{}[\]()#+\-.!|~<>]/.test(text[at + 1] ?? '')) at++;
      plain += text[at++];
    }
  }
  flush();
  return nodes;
}

/** Where `mark` stands next, not far from `from`; -1 if nowhere. */
function find(text, mark, from) {
  const at = text.slice(from, from + SPAN_MAX).indexOf(mark);
  return at < 0 ? -1 : from + at;
}

function codeSpan(text, at) {
  if (text[at] !== '`') return null;
  let n = 1;
  while (text[at + n] === '`') n++;
  const end = find(text, '`'.repeat(n), at + n);
  return end < 0 ? null : { node: make('code', {}, text.slice(at + n, end).trim()), end: end + n };
}

const FORMULAS = [['\\(', '\\)'], ['\\[', '\\]'], ['$$', '$$']];

/** The marks around a formula that begins at `at`; those of an environment, such as `\begin{align*}`, bear its name. */
function marksAt(text, at) {
  const [begin, name] = /^\\begin\{([a-z]+\*?)\}/i.exec(text.slice(at, at + 40)) ?? [];
  return begin ? [begin, `\\end{${name}}`] : FORMULAS.find(([mark]) => text.startsWith(mark, at));
}

/** A formula within a line, as it was written. Prices are none: between dollars there is no blank at either end, and no digit follows. */
function formula(text, at) {
  if (text[at] !== '\\' && text[at] !== '$') return null;
  const [mark, close] = marksAt(text, at) ?? [];
  const closes = mark ? find(text, close, at + mark.length) : -1;
  if (closes > at + (mark?.length ?? 0)) {
    const end = closes + close.length;
    return { node: make('span', { className: 'formula' }, text.slice(at, end)), end };
  }
  const [found] = /^\$(?![\s$])[^$\n]{0,499}[^$\s\\]\$(?!\d)/.exec(text.slice(at, at + 502)) ?? [];
  return found ? { node: make('span', { className: 'formula' }, found), end: at + found.length } : null;
}

const EMPHASES = [['***', 'strong'], ['**', 'strong'], ['__', 'strong'], ['~~', 'del'], ['*', 'em'], ['_', 'em']];

/** Where the emphasis that `mark` began ends; -1 if nowhere. Of a longer run the last marks are the outer ones'. */
function closing(text, mark, from) {
  for (let at = find(text, mark, from), end; at >= 0 && at < from + SPAN_MAX; at = find(text, mark, end)) {
    for (end = at; text[end] === mark[0];) end++;
    if (mark.length > 1 || end - at !== 2) return end - mark.length;
  }
  return -1;
}

function emphasis(text, at, depth) {
  const isWord = (place) => /[\p{L}\p{N}]/u.test(text[place] ?? '');
  const isSpace = (place) => /^\s?$/.test(text[place] ?? '');
  for (const [mark, name] of '*_~'.includes(text[at]) ? EMPHASES : []) {
    // An underscore within a word is part of a name.
    if (!text.startsWith(mark, at) || isSpace(at + mark.length) || (mark[0] === '_' && isWord(at - 1))) continue;
    const end = closing(text, mark, at + mark.length + 1);
    if (end < 0 || isSpace(end - 1) || (mark[0] === '_' && isWord(end + mark.length))) continue;
    const inner = inline(text.slice(at + mark.length, end), depth + 1);
    const nodes = mark === '***' ? [make('em', {}, ...inner)] : inner;
    return { node: make(name, {}, ...nodes), end: end + mark.length };
  }
  return null;
}

function link(text, at, depth) {
  if (text[at] !== '[') return null;
  const middle = find(text, '](', at);
  const end = middle < 0 ? -1 : find(text, ')', middle);
  const url = end < 0 ? null : webAddress(text.slice(middle + 2, end).split(' ')[0]);
  return url && { node: anchor(url, inline(text.slice(at + 1, middle), depth + 1)), end: end + 1 };
}

/** An address that stands in a text by itself. */
function address(text, at) {
  if (!text.startsWith('http', at)) return null;
  const [found] = /^https?:\/\/[^\s<>"`*\])]+/.exec(text.slice(at, at + SPAN_MAX)) ?? [''];
  const bare = found.replace(/[.,;:!?']+$/, '');
  const url = bare && webAddress(bare);
  return url && { node: anchor(url, [bare]), end: at + bare.length };
}

/** The address as the browser reads it, if it is one of the web. */
function webAddress(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  return url && ['http:', 'https:'].includes(url.protocol) ? url.href : null;
}

const anchor = (href, nodes) => make('a', { href, target: '_blank', rel: 'noopener noreferrer' }, ...nodes);
