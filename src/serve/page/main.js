
// Joins the page's elements with what they do.

/** Shows a dialog; what was entered, or `null` if it was closed. */
function showDialog(id, values = {}) {
  const dialog = byId(id);
  const form = dialog.querySelector('form');
  form.reset();
  for (const [name, value] of Object.entries(values)) if (form.elements[name]) form.elements[name].value = value;
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

/** Offers the models of a server that has several. */
function offerModels() {
  const option = (name) => make('option', { value: name }, name || 'the server’s choice');
  document.querySelector('#models select').replaceChildren(...['', ...models.map(({ id }) => id)].map(option));
  byId('models').hidden = models.length < 2;
}

async function changeSettings() {
  const chat = current;
  offerModels();
  const fields = await showDialog('settings', chat.settings ?? settings);
  if (!fields) return;
  chat.settings = {};
  if (fields.system.trim()) chat.settings.system = fields.system.trim();
  if (fields.model) chat.settings.model = fields.model;
  for (const name of NUMBERS) {
    if (fields[name] !== '') chat.settings[name] = Number(fields[name]);
  }
  if (chats.has(chat.id)) keepChat(chat);
  showModel().catch(() => {});
  if (!fields.isDefault) return;
  settings = chat.settings;
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

/** Adds conversations from files as Export writes them; each gets a name of its own. */
async function importChats(files) {
  let problem = '';
  for (const file of files) {
    try {
      const chat = chatOf(JSON.parse(await file.text()), newChat().id);
      if (!chat) throw new Error('it holds no conversation as Export writes it');
      chats.set(chat.id, chat);
      keepChat(chat);
      openChat(chat);
    } catch (error) {
      problem = `${file.name} was not imported: ${error.message}`;
    }
  }
  if (problem) showProblem(problem);
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
onClick('import', () => byId('file').click());
byId('file').addEventListener('change', async () => {
  await importChats(byId('file').files);
  byId('file').value = '';
});
byId('shorten').firstChild.addEventListener('click', shorten);
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
// Changes by another tab are shown here, unless an answer is being written into the conversation.
addEventListener('storage', ({ key: name }) => {
  if (!name?.startsWith(CHAT_PREFIX)) return;
  const id = name.slice(CHAT_PREFIX.length);
  if (running.has(id)) return;
  const chat = loadChat(name, 'Being written in another tab');
  if (chat) chats.set(id, chat);
  else chats.delete(id);
  if (id === current.id) openChat(chat ?? newChat());
  else showList();
});
addEventListener('pageshow', ({ persisted }) => {
  if (persisted && running.size > 0) location.reload();
  isLeaving = false;
});
addEventListener('pagehide', () => {
  isLeaving = true;
  for (const id of running.keys()) if (chats.has(id)) keepChat(chats.get(id));
});
byId('server').addEventListener('toggle', () => { if (byId('server').open) showServer(); });
setInterval(() => {
  if (byId('server').open && !document.hidden && !keyAsked && !isKeyRefused) showServer();
}, POLL_MS);

const newest = [...chats.values()].sort((a, b) => b.time - a.time)[0];
openChat(newest ?? current);
showModel().catch((error) => showProblem(error.message));
