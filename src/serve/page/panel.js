
// The server's panel: model, work and speed, and the nodes if it is a ring.

const POLL_MS = 3000;
let figuresBefore = {};
const speeds = {};

const speed = (perSecond) => `${perSecond.toFixed(perSecond < 100 ? 1 : 0)} tokens/s`;

/** The server's models as they were last shown. */
let models = [];

/** Shows the model of the conversation: the one that was chosen, else the server's choice. */
async function showModel() {
  models = (await (await ask('v1/models')).json()).data;
  const chosen = (current.settings ?? settings).model;
  const model = models.find(({ id }) => id === chosen) ?? models[0] ?? { id: 'no model yet', max_model_len: 0 };
  byId('model').textContent = models.length > 1 && model.id !== chosen ? `one of ${models.length} models` : model.id;
  return model;
}

async function showServer() {
  try {
    const model = await showModel();
    const samples = samplesOf(await (await ask('metrics')).text());
    const figures = Object.fromEntries(samples.filter(({ labels }) => !labels.node).map(({ name, value }) => [name, value]));
    const rate = (what, tokens, seconds) => {
      const n = figures[tokens] - (figuresBefore[tokens] ?? 0);
      const time = figures[seconds] - (figuresBefore[seconds] ?? 0);
      // Without new tokens the last speed stays.
      if (n > 0 && time > 0) speeds[what] = speed(n / time);
      return speeds[what] ?? '–';
    };
    const rows = [
      ['Model', model.id],
      ['Context', `${model.max_model_len} tokens`],
      ['Answers running', figures.leap_jobs_running ?? '–'],
      ['Answers waiting', figures.leap_jobs_queued ?? '–'],
      ['Reading', rate('reading', 'leap_prompt_tokens_total', 'leap_prompt_seconds_total')],
      ['Writing', rate('writing', 'leap_generated_tokens_total', 'leap_decode_seconds_total')],
    ];
    figuresBefore = figures;
    byId('figures').replaceChildren(...rows.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, String(value))]));
    byId('nodes').replaceChildren(...nodesTable(samples.filter(({ labels }) => labels.node)));
  } catch (error) {
    byId('figures').replaceChildren(make('dt', {}, 'Not reached'), make('dd', {}, error.message));
  }
}

/** A row for each node of the ring, a column for each of its figures. */
function nodesTable(samples) {
  if (samples.length === 0) return [];
  const names = [...new Set(samples.map(({ name }) => name))];
  const nodes = [...new Set(samples.map(({ labels }) => labels.node))];
  const title = (name) => name.replace(/^leap_(node_)?/, '').replaceAll('_', ' ');
  const head = make('tr', {}, ...['node', ...names.map(title)].map((text) => make('th', {}, text)));
  const row = (node) => make('tr', {}, make('th', {}, node), ...names.map((name) => {
    const sample = samples.find((sample) => sample.name === name && sample.labels.node === node);
    const more = Object.entries(sample?.labels ?? {}).filter(([label]) => label !== 'node').map(([label, value]) => `${label} ${value}`);
    return make('td', {}, [sample?.value ?? '–', ...more].join(', '));
  }));
  return [make('div', { className: 'scroll' }, make('table', {}, make('thead', {}, head), make('tbody', {}, ...nodes.map(row))))];
}
