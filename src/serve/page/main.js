
// Joins the page's elements with what they do.

/** Shows a dialog; what was entered, or `null` if it was closed. */
function showDialog(id, values = {}) {
  const dialog = byId(id);
  const form = dialog.querySelector('form');
  form.reset();
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  dialog.returnValue = '';
  dialog.showModal();
  return new Promise((resolve) => {
    const entered = () => Object.fromEntries([...form.elements].filter((field) => field.name)
      .map((field) => [field.name, field.type === 'checkbox' ? field.checked : field.value]));
    dialog.addEventListener('close', () => {
      resolve(dialog.returnValue ? entered() : null);
      form.reset();
    }, { once: true });
  });
}

async function changeSettings() {
  const fields = await showDialog('settings', settings);
  if (!fields) return;
  settings = {};
  if (fields.system.trim()) settings.system = fields.system.trim();
  for (const name of ['temperature', 'max_tokens', 'seed']) {
    if (fields[name] !== '') settings[name] = Number(fields[name]);
  }
  keep('leap.settings', settings);
}

/** Shows or hides the list on small screens. */
function openSide(isOpen) {
  byId('side').classList.toggle('open', isOpen);
  byId('shade').hidden = !isOpen;
  byId('menu').setAttribute('aria-expanded', String(isOpen));
}

/** Makes the message's field as high as its text. */
function fit() {
  const text = byId('text');
  text.style.height = 'auto';
  text.style.height = `${text.scrollHeight + 2}px`;
}

function rename() {
  const title = prompt('Title of this conversation', current.title)?.trim();
  if (!title) return;
  current.title = title;
  keepChat(current);
  showList();
}

function removeChat() {
  if (!confirm(`Delete "${current.title}"?`)) return;
  running.get(current.id)?.abort();
  chats.delete(current.id);
  keep(CHAT_PREFIX + current.id, null);
  openChat(newChat());
}

const onClick = (id, action) => byId(id).addEventListener('click', action);
onClick('new', () => openChat(newChat()));
onClick('settings-open', changeSettings);
onClick('rename', rename);
onClick('export', () => download(`${current.title.replace(/[^\p{L}\p{N}]+/gu, '-')}.json`, current));
onClick('delete', removeChat);
onClick('stop', () => running.get(current.id)?.abort());
onClick('menu', () => {
  openSide(true);
  byId('new').focus();
});
onClick('shade', () => openSide(false));

byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
byId('text').addEventListener('input', fit);
byId('text').addEventListener('keydown', (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  send();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if (byId('side').classList.contains('open')) {
    openSide(false);
    byId('menu').focus();
  } else {
    running.get(current.id)?.abort();
  }
});
// What another tab changes is seen here, unless an answer is being written into it.
addEventListener('storage', ({ key: name }) => {
  if (!name?.startsWith(CHAT_PREFIX)) return;
  const id = name.slice(CHAT_PREFIX.length);
  if (running.has(id)) return;
  const chat = loadChat(name);
  if (chat) chats.set(id, chat);
  else chats.delete(id);
  if (id === current.id) openChat(chat ?? newChat());
  else showList();
});
addEventListener('pagehide', () => {
  for (const id of running.keys()) if (chats.has(id)) keepChat(chats.get(id));
});
byId('server').addEventListener('toggle', () => { if (byId('server').open) showServer(); });
setInterval(() => {
  if (byId('server').open && !document.hidden && !keyAsked && !isKeyRefused) showServer();
}, POLL_MS);

const newest = [...chats.values()].sort((a, b) => b.time - a.time)[0];
openChat(newest ?? current);
showModel().catch((error) => showProblem(error.message));
