
// Data that the browser keeps: conversations, settings, and the key if that is wished.

const CHAT_PREFIX = 'leap.chat.';

/** A value that was stored as JSON; `null` if there is none, or the browser keeps nothing. */
function load(name, storage = 'localStorage') {
  try {
    return JSON.parse(window[storage].getItem(name));
  } catch {
    return null;
  }
}

/** Stores a value, or forgets it if it is `null`; whether that worked: there may be no room. */
function keep(name, value, storage = 'localStorage') {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** Settings that are numbers. */
const NUMBERS = ['temperature', 'top_p', 'max_tokens', 'seed'];

/** A conversation called `id` of what was stored or exported, if it is one. An answer that was not complete says `openNote`. */
function chatOf(found, id, openNote = 'Cut short, as the page was closed. Regenerate writes it anew; or write on.') {
  const isMessage = (message) => ['user', 'assistant'].includes(message?.role) && typeof message.content === 'string';
  if (!Array.isArray(found?.messages) || !found.messages.every(isMessage)) return null;
  const text = (value) => (typeof value === 'string' ? value : '');
  const messages = found.messages.map(({ role, content, thoughts, note, isOpen }) => (role === 'user' ? { role, content } : {
    role, content, thoughts: text(thoughts),
    note: isOpen ? openNote : text(note),
  }));
  const chat = { id, title: text(found.title) || 'Conversation', time: Number(found.time) || 0, messages };
  if (Number.isInteger(found.from) && found.from > 0 && found.from < messages.length) chat.from = found.from;
  if (found.settings && typeof found.settings === 'object') {
    chat.settings = Object.fromEntries(NUMBERS.filter((name) => Number.isFinite(found.settings[name])).map((name) => [name, found.settings[name]]));
    for (const name of ['system', 'model']) if (text(found.settings[name])) chat.settings[name] = found.settings[name];
  }
  return chat;
}

const loadChat = (name, openNote) => chatOf(load(name), name.slice(CHAT_PREFIX.length), openNote);

/** All conversations, by their names. */
function loadChats() {
  let names = [];
  try {
    names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT_PREFIX));
  } catch { /* Nothing is kept here. */ }
  return new Map(names.map((name) => loadChat(name)).filter(Boolean).map((chat) => [chat.id, chat]));
}

function keepChat(chat) {
  if (!keep(CHAT_PREFIX + chat.id, chat)) showProblem('The browser has no room for this conversation: export or delete some.');
}

/** Copies text, also where the browser has no clipboard for pages without TLS. */
async function copyText(text, button) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make('textarea', { value: text, className: 'unseen' });
    button.after(area);
    area.select();
    isDone = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  button.textContent = isDone ? 'Copied' : 'Not copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

/** Gives the user a file. */
function download(name, value) {
  const href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: 'application/json' }));
  make('a', { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}
