// Asks a server of the demo model with npm's packages openai and ollama. Usage: test-clients.mjs HOST:PORT HOST:PORT KEY
// The second server has a model that knows tools.
import assert from 'node:assert';
import { Ollama } from 'ollama';
import OpenAI from 'openai';

const [address, toolsAddress, key] = process.argv.slice(2);
const messages = [
  { role: 'system', content: 'You tell stories.' },
  { role: 'user', content: 'Tell me a story about a fox.' },
];
const wishes = { model: 'demo', messages, temperature: 0, max_tokens: 30 };
const fox = {
  type: 'object',
  additionalProperties: false,
  required: ['name', 'is_brave'],
  properties: { name: { type: 'string', maxLength: 20 }, is_brave: { type: 'boolean' } },
};

const client = new OpenAI({ baseURL: `http://${address}/v1`, apiKey: key, maxRetries: 0 });
const answer = await client.chat.completions.create({ ...wishes, logprobs: true });
const text = answer.choices[0].message.content;
assert.equal(answer.choices[0].logprobs.content.map(({ token }) => token).join(''), text);
let streamed = '';
for await (const part of await client.chat.completions.create({ ...wishes, stream: true })) {
  streamed += part.choices[0].delta.content ?? '';
}
assert.equal(streamed, text);
const response = await client.responses.create({
  model: 'demo', instructions: 'You tell stories.', input: messages[1].content, temperature: 0, max_output_tokens: 30,
});
assert.equal(response.output_text, text);
const formed = await client.chat.completions.create({
  ...wishes, max_tokens: 80, response_format: { type: 'json_schema', json_schema: { name: 'fox', schema: fox } },
});
assert.equal(typeof JSON.parse(formed.choices[0].message.content).is_brave, 'boolean');
// A client that goes away gets no more of its answer.
const cancelled = await client.chat.completions.create({ ...wishes, max_tokens: 900, stream: true });
for await (const _ of cancelled) break;
await assert.rejects(client.embeddings.create({ model: 'demo', input: 'fox' }), OpenAI.BadRequestError);
const stranger = new OpenAI({ baseURL: `http://${address}/v1`, apiKey: 'wrong', maxRetries: 0 });
await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);

const lamp = {
  name: 'lamp',
  parameters: { type: 'object', properties: { on: { type: 'boolean' } }, required: ['on'], additionalProperties: false },
};
const tooled = new OpenAI({ baseURL: `http://${toolsAddress}/v1`, apiKey: key, maxRetries: 0 });
const light = [{ role: 'user', content: 'Light!' }];
const called = await tooled.chat.completions.create({
  model: 'qwen3-tiny', messages: light, tools: [{ type: 'function', function: lamp }], tool_choice: 'required', seed: 1,
  max_tokens: 200,
});
const [call] = called.choices[0].message.tool_calls;
assert.equal(call.function.name, 'lamp');
assert.equal(typeof JSON.parse(call.function.arguments).on, 'boolean');

const ollama = new Ollama({ host: `http://${address}`, headers: { Authorization: `Bearer ${key}` } });
const options = { temperature: 0, num_predict: 30 };
assert.equal((await ollama.chat({ model: 'demo', messages, options })).message.content, text);
streamed = '';
for await (const part of await ollama.chat({ model: 'demo', messages, options, stream: true })) {
  streamed += part.message.content;
}
assert.equal(streamed, text);
const shaped = await ollama.chat({ model: 'demo', messages, format: fox, options: { temperature: 0, num_predict: 80 } });
assert.equal(typeof JSON.parse(shaped.message.content).is_brave, 'boolean');
const told = await ollama.chat({ model: 'demo', messages, options, logprobs: true });
assert.equal(told.logprobs.map(({ token }) => token).join(''), text);
const left = await ollama.chat({ model: 'demo', messages, options: { num_predict: 900 }, stream: true });
for await (const _ of left) {
  left.abort();
  break;
}
await assert.rejects(ollama.embed({ model: 'demo', input: 'fox' }), /not a model of embeddings/);
await assert.rejects(new Ollama({ host: `http://${address}` }).list(), /key/);
const handy = new Ollama({ host: `http://${toolsAddress}`, headers: { Authorization: `Bearer ${key}` } });
// The protocol has no word for a call that has to come: the model hears of the tool, and of a call that was.
const asked = { model: 'qwen3-tiny', tools: [{ type: 'function', function: lamp }], options: { seed: 1, num_predict: 5 } };
const done = [
  ...light,
  { role: 'assistant', content: '', tool_calls: [{ function: { name: 'lamp', arguments: { on: true } } }] },
  { role: 'tool', tool_name: 'lamp', content: 'done' },
];
const [heard, more] = [
  await handy.chat({ ...asked, messages: light }), await handy.chat({ ...asked, messages: done }),
];
assert.ok(heard.prompt_eval_count > 50 && more.prompt_eval_count > heard.prompt_eval_count);
