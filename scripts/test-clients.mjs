// Asks a server of the demo model with npm's packages openai and ollama. Usage: test-clients.mjs HOST:PORT KEY
import assert from 'node:assert';
import { Ollama } from 'ollama';
import OpenAI from 'openai';

const [address, key] = process.argv.slice(2);
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
// Whoever goes away is not waited for.
const cancelled = await client.chat.completions.create({ ...wishes, max_tokens: 900, stream: true });
for await (const _ of cancelled) break;
await assert.rejects(client.embeddings.create({ model: 'demo', input: 'fox' }), OpenAI.NotFoundError);
const stranger = new OpenAI({ baseURL: `http://${address}/v1`, apiKey: 'wrong', maxRetries: 0 });
await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);

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
