
// Asks the server.

let key = load('leap.key', 'sessionStorage') ?? load('leap.key');
let keyAsked = null;
let isKeyRefused = false;

/** What the server answers; asks the user for a key where it wants one. Paths are the page's neighbours, also behind a proxy. */
async function ask(path, body = null, signal = null) {
  for (;;) {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    if (body) headers['Content-Type'] = 'application/json';
    const used = key;
    const response = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, cache: 'no-store' });
    if (response.ok) return response;
    if (response.status !== 401) throw new Error(await problemOf(response));
    // Another request may have brought one meanwhile.
    if (key === used) await askKey();
  }
}

async function problemOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answers ${response.status}: ${text.slice(0, 200)}`;
  }
}

/** Has the user enter a key, once for all requests that wait for it. */
function askKey() {
  keyAsked ??= showDialog('key').then((fields) => {
    isKeyRefused = !fields;
    if (!fields) throw new Error('The server answers only those who have a key.');
    key = fields.key.trim();
    keep('leap.key', key, 'sessionStorage');
    keep('leap.key', fields.keep ? key : null);
  }).finally(() => { keyAsked = null; });
  return keyAsked;
}

/** The events of an answer that comes piece by piece. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error('The answer was cut short: the connection ended.');
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith('data:'))) {
      const text = line.slice(5).trim();
      if (text === '[DONE]') return;
      const event = JSON.parse(text);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

/** The samples of Prometheus' text: name, labels and value. */
function samplesOf(text) {
  return text.split('\n').flatMap((line) => {
    const [, name, labels = '', value] = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, label, text]) => [label, text]);
    return name ? [{ name, labels: Object.fromEntries(pairs), value: Number(value) }] : [];
  });
}
