
// Conversations: what is shown, and what the server is asked.

const byId = (id) => document.getElementById(id);
const chats = loadChats();
/** Conversations that an answer is being written in, and what stops it. */
const running = new Map();
/** The elements of the messages that are shown. */
const shown = new WeakMap();
/** Settings of new conversations. */
let settings = load('leap.settings') ?? {};
let current = newChat();
/** Whether the page is being closed, which ends its requests. */
let isLeaving = false;

// Unlike randomUUID, this is there without TLS too.
function newChat() {
  const id = Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join('');
  return { id, title: 'New conversation', time: Date.now(), messages: [], settings };
}

/** Says what is wrong; where the context is full, how to go on. */
function showProblem(text, isFull = false) {
  byId('problem').textContent = text;
  byId('problem').hidden = !text;
  byId('shorten').hidden = !isFull;
}

/** Leaves the first half of the conversation out of requests from now on; the last message is answered anew. */
function shorten() {
  const { messages } = current;
  const from = current.from ?? 0;
  let next = from + Math.max(1, Math.ceil((messages.length - from) / 2) - 1);
  while (next < messages.length && messages[next].role !== 'user') next++;
  const isLast = next >= messages.length || messages.slice(next).every(({ role }) => role === 'assistant');
  if (isLast) {
    showProblem('The last message alone is longer than the context: edit it, or start the server with a longer one (--ctx).');
    return;
  }
  current.from = next;
  answer(current, messages.at(-1).role === 'user' ? messages.length : messages.length - 1);
}

const isTouched = () => matchMedia('(pointer: coarse)').matches;

/** Tells those who cannot see the page. */
const tell = (text) => { byId('live').textContent = text; };

function showList() {
  const rows = [...chats.values()].sort((a, b) => b.time - a.time).map((chat) => {
    const button = make('button', { type: 'button', textContent: chat.title, title: chat.title });
    if (chat === current) button.setAttribute('aria-current', 'true');
    button.addEventListener('click', () => openChat(chat));
    return make('li', {}, button);
  });
  byId('list').replaceChildren(...rows);
  byId('title').textContent = current.title;
  document.title = `${current.title} – LEAP`;
  byId('chat-buttons').hidden = !chats.has(current.id);
}

function openChat(chat) {
  current = chat;
  showProblem('');
  openSide(false);
  showList();
  showMessages();
  // On a phone that would bring its keyboard, before what was written can be read.
  if (!isTouched()) byId('text').focus();
}

function showMessages() {
  byId('log').replaceChildren(...current.messages.map(messageElement));
  [...byId('log').children].slice(0, current.from ?? 0).forEach((item) => {
    item.classList.add('left-out');
    item.title = 'The model is not told of this any more';
  });
  byId('log').scrollTop = byId('log').scrollHeight;
  showState();
}

/** Shows what can be done now. */
function showState() {
  const isRunning = running.has(current.id);
  const [here, gone] = isRunning ? [byId('stop'), byId('send')] : [byId('send'), byId('stop')];
  const isFocused = gone === document.activeElement;
  here.hidden = false;
  gone.hidden = true;
  if (isFocused) here.focus();
  for (const button of document.querySelectorAll('.foot .when-idle')) button.hidden = isRunning;
  for (const button of document.querySelectorAll('.again')) button.hidden = isRunning || !button.closest('li').matches(':last-child');
}

function button(text, action, className = 'when-idle') {
  const element = make('button', { type: 'button', textContent: text, className });
  element.addEventListener('click', () => action(element));
  return element;
}

function messageElement(message) {
  const isUser = message.role === 'user';
  const body = make('div', { className: 'body' });
  const foot = make('div', { className: 'foot' });
  const item = make('li', { className: message.role }, make('span', { className: 'unseen' }, isUser ? 'You:' : 'Answer:'));
  if (isUser) {
    body.textContent = message.content;
    foot.append(button('Edit', () => edit(message, item)));
  } else {
    const thoughts = make('details', { className: 'thoughts' }, make('summary'), make('p'));
    item.append(thoughts);
    foot.append(
      button('Copy', (element) => copyText(message.content, element), ''),
      button('Regenerate', () => answer(current, current.messages.indexOf(message)), 'again'),
      make('span', { className: 'note' }),
    );
  }
  item.append(body, foot);
  shown.set(message, item);
  if (!isUser) draw(message);
  return item;
}

/** Shows an answer as far as it has come. */
function draw(message) {
  const item = shown.get(message);
  const log = byId('log');
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const thoughts = item.querySelector('.thoughts');
  thoughts.hidden = !message.thoughts;
  thoughts.firstChild.textContent = message.content ? 'Thoughts' : 'Thinking …';
  thoughts.lastChild.textContent = message.thoughts ?? '';
  showMarkdown(item.querySelector('.body'), message.content);
  item.querySelector('.note').textContent = message.note ?? '';
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** Whether a key sends: not one that ends a word of an input method, and not where there is no Shift for another line. */
const sends = (event) => event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.keyCode !== 229 && !isTouched();

/** Has the user write a message anew; what came after it makes way. */
function edit(message, item) {
  const area = make('textarea', { value: message.content });
  area.setAttribute('aria-label', 'Edited message');
  const close = () => { item.replaceWith(messageElement(message)); showState(); byId('text').focus(); };
  const send = () => {
    if (!area.value.trim() || running.has(current.id)) return;
    message.content = area.value.trim();
    current.from = Math.min(current.from ?? 0, current.messages.indexOf(message));
    answer(current, current.messages.indexOf(message) + 1);
    byId('text').focus();
  };
  area.addEventListener('keydown', (event) => {
    if (sends(event)) { event.preventDefault(); send(); }
    if (event.key === 'Escape') { event.stopPropagation(); close(); }
  });
  item.replaceChildren(make('div', { className: 'edit' }, area, make('p', { className: 'buttons' }, button('Send', send), ' ', button('Cancel', close))));
  area.focus();
}

/** Sends what was written. */
function send() {
  const content = byId('text').value.trim();
  if (!content || running.has(current.id)) return;
  byId('text').value = '';
  fit();
  if (current.messages.length === 0) current.title = content.split('\n')[0].slice(0, 60);
  current.messages.push({ role: 'user', content });
  answer(current, current.messages.length);
}

/** Has message `at` of a conversation written, in place of what is there and after it. */
async function answer(chat, at) {
  const message = { role: 'assistant', content: '', thoughts: '', isOpen: true };
  const stop = new AbortController();
  chat.messages.splice(at, Infinity, message);
  chat.time = Date.now();
  chats.set(chat.id, chat);
  running.set(chat.id, stop);
  keepChat(chat);
  showProblem('');
  showList();
  showMessages();
  tell('The answer is being written.');
  try {
    await receive(chat, message, stop.signal);
    tell(message.content);
  } catch (error) {
    // The text so far is kept as an answer that the user cut short.
    if (isLeaving) return;
    message.note = stop.signal.aborted ? 'Stopped' : 'Failed';
    tell(message.note);
    // In another conversation, the user sees the note when coming back.
    if (!stop.signal.aborted && chat === current) showProblem(error.message, error.code === 'context_length_exceeded');
  }
  delete message.isOpen;
  running.delete(chat.id);
  // A conversation that was deleted meanwhile stays so.
  if (chats.has(chat.id)) keepChat(chat);
  if (chat === current) {
    draw(message);
    showState();
  }
}

async function receive(chat, message, signal) {
  const body = { messages: wordsOf(chat, message), stream: true, stream_options: { include_usage: true } };
  const { system, ...numbers } = chat.settings ?? settings;
  Object.assign(body, numbers);
  let first = 0;
  let isDue = false;
  let lastKept = Date.now();
  for await (const { choices: [choice], usage } of events(await ask('v1/chat/completions', body, signal))) {
    const { content, reasoning_content: thoughts } = choice?.delta ?? {};
    message.content += content ?? '';
    message.thoughts += thoughts ?? '';
    if (content || thoughts) first ||= performance.now();
    if (usage) noteFigures(message, usage.completion_tokens, performance.now() - first);
    if (choice?.finish_reason === 'length') message.isCut = true;
    // A setting may end an answer, too.
    const isFull = message.isCut && (!numbers.max_tokens || usage?.completion_tokens < numbers.max_tokens);
    if (isFull && chat === current) {
      showProblem('The context is full, so the answer ends here. Start a new conversation, or:', true);
    }
    if (!isDue && chat === current) {
      isDue = true;
      requestAnimationFrame(() => { isDue = false; if (chat === current) draw(message); });
    }
    if (Date.now() - lastKept > 2000 && chats.has(chat.id)) {
      lastKept = Date.now();
      keepChat(chat);
    }
  }
}

/** The model's input of a conversation before `end`: the system text, then the messages, without thoughts, empty answers and messages left out. */
function wordsOf(chat, end) {
  const said = chat.messages.slice(chat.from ?? 0, chat.messages.indexOf(end)).filter(({ content }) => content);
  const words = said.map(({ role, content }) => ({ role, content }));
  const { system } = chat.settings ?? settings;
  return system ? [{ role: 'system', content: system }, ...words] : words;
}

function noteFigures(message, tokens, ms) {
  const rate = tokens > 1 && ms > 0 ? `, ${speed((tokens - 1) * 1000 / ms)}` : '';
  message.note = `${tokens} tokens${rate}${message.isCut ? ', cut: as long as it may be' : ''}`;
}
