
// Asks the server.

let key = load('leap.key', 'sessionStorage') ?? load('leap.key');
let keyAsked = null;
let isKeyRefused = false;

/** The server's answer; asks the user for a key where it wants one. Paths are the page's neighbours, also behind a proxy. */
async function ask(path, body = null, signal = null) {
  for (;;) {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    if (body) headers['Content-Type'] = 'application/json';
    const used = key;
    const request = { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, cache: 'no-store' };
    const response = await fetch(path, request).catch((error) => {
      throw signal?.aborted ? error : new Error(`The server is not reached. ${WHEN_BACK}`);
    });
    if (response.ok) return response;
    if (response.status !== 401) throw await problemOf(response);
    // Another request may have brought one meanwhile.
    if (key === used) await askKey();
  }
}

const WHEN_BACK = 'Nothing is lost: once it runs again, press Regenerate, or write on.';

async function problemOf(response) {
  const text = await response.text().catch(() => '');
  try {
    return problem(JSON.parse(text).error);
  } catch {
    return new Error(`The server answers ${response.status}: ${text.slice(0, 200)}`);
  }
}

/** An error that the server tells of, and what to do. */
function problem({ message, code }) {
  const isFull = code === 'context_length_exceeded';
  const error = new Error(isFull ? `The conversation is longer than the model's context: ${message}. Start a new one, or:` : message);
  return Object.assign(error, { code });
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
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === 'AbortError') throw error;
      return { done: true };
    });
    if (done) throw new Error(`The answer was cut short: the connection to the server ended. ${WHEN_BACK}`);
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith('data:'))) {
      const text = line.slice(5).trim();
      if (text === '[DONE]') return;
      const event = JSON.parse(text);
      if (event.error) throw problem(event.error);
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
