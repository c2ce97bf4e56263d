
// What the browser keeps: conversations, settings, and the key if that is wished.

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

/** A conversation as it was stored, if it is one. */
function loadChat(name) {
  const chat = load(name);
  const isMessage = (message) => ['user', 'assistant'].includes(message?.role) && typeof message.content === 'string';
  return Array.isArray(chat?.messages) && chat.messages.every(isMessage) ? { title: 'Conversation', time: 0, ...chat, id: name.slice(CHAT_PREFIX.length) } : null;
}

/** All conversations, by their names. */
function loadChats() {
  let names = [];
  try {
    names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT_PREFIX));
  } catch { /* Nothing is kept here. */ }
  return new Map(names.map(loadChat).filter(Boolean).map((chat) => [chat.id, chat]));
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
