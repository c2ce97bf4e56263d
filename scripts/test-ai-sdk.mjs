// Asks a server of the demo model with Vercel's ai: through @ai-sdk/openai-compatible and ollama-ai-provider-v2.
// Usage: test-ai-sdk.mjs HOST:PORT HOST:PORT KEY
// The second server has a model that knows tools. Its weights are random: what it says is any text.
import assert from 'node:assert';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai';
import { createOllama } from 'ollama-ai-provider-v2';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [address, toolsAddress, key] = process.argv.slice(2);
const prompt = 'Tell me a story about a fox.';
const system = 'You tell stories.';
// The provider of Ollama's protocol sends its own settings beside `options`, where Ollama does not look for them.
const settings = (n, more = {}) => ({
  maxOutputTokens: n, maxRetries: 0, ...more,
  providerOptions: { ollama: { options: { num_predict: n, ...more } } },
});
const usual = { system, prompt, ...settings(30, { temperature: 0 }) };
const formedUsual = { ...usual, ...settings(120, { temperature: 0 }) };
const fox = z.object({ colour: z.enum(['red', 'white']), isBrave: z.boolean(), age: z.number().int().min(0).max(9) });
const lamp = tool({
  description: 'Turns the lamp on or off.',
  inputSchema: z.object({ on: z.boolean() }),
  execute: async ({ on }) => ({ isOn: on }),
});

const compatible = (host) => createOpenAICompatible({
  name: 'leap', baseURL: `http://${host}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true,
});
const ollama = (host) => createOllama({ baseURL: `http://${host}/api`, headers: { Authorization: `Bearer ${key}` } });

let failed = 0;
async function check(name, run) {
  try {
    await run();
  } catch (error) {
    failed += 1;
    console.error(`${name}:`, error);
  }
}

async function all(parts) {
  const list = [];
  for await (const part of parts) list.push(part);
  return list;
}

for (const [name, provider] of [['openai-compatible', compatible], ['ollama-ai-provider-v2', ollama]]) {
  const demo = provider(address)('demo');
  const handy = provider(toolsAddress)('qwen3-tiny');
  let text;
  await check(`${name}, text`, async () => {
    const answer = await generateText({ ...usual, model: demo });
    text = answer.text;
    assert.ok(text.length > 0 && answer.usage.outputTokens === 30 && answer.finishReason === 'length');
  });
  await check(`${name}, stream`, async () => {
    const stream = streamText({ ...usual, model: demo });
    assert.equal((await all(stream.textStream)).join(''), text);
    assert.equal((await stream.usage).outputTokens, 30);
  });
  await check(`${name}, conversation`, async () => {
    const messages = [
      { role: 'system', content: system },
      { role: 'user', content: [{ type: 'text', text: 'Hi.' }] },
      { role: 'assistant', content: [{ type: 'text', text: 'Hello.' }] },
      { role: 'user', content: prompt },
    ];
    const answer = await generateText({ ...usual, system: undefined, prompt: undefined, messages, model: demo });
    assert.ok(answer.text.length > 0);
  });
  await check(`${name}, object`, async () => {
    const { object } = await generateObject({ ...formedUsual, schema: fox, model: demo });
    fox.parse(object);
  });
  await check(`${name}, stream of an object`, async () => {
    const stream = streamObject({ ...formedUsual, schema: fox, model: demo });
    await all(stream.partialObjectStream);
    fox.parse(await stream.object);
  });
  for (const stream of [false, true]) {
    await check(`${name}, tools in rounds, ${stream ? 'streamed' : 'whole'}`, async () => {
      const wishes = {
        model: handy, prompt: 'Light!', tools: { lamp }, ...settings(300, { seed: 1 }), stopWhen: stepCountIs(3),
        // The first two rounds have to call. Ollama itself knows no such word.
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? 'required' : 'auto' }),
      };
      let steps;
      if (stream) {
        const parts = streamText(wishes);
        await all(parts.fullStream);
        steps = await parts.steps;
      } else {
        steps = (await generateText(wishes)).steps;
      }
      const results = steps.flatMap((step) => step.toolResults);
      assert.ok(results.every(({ output }) => typeof output.isOn === 'boolean'));
      assert.ok(steps.length === 3 && results.length >= 2, `${steps.length} ${results.length}`);
    });
  }
  await check(`${name}, history with a call`, async () => {
    const messages = [
      { role: 'user', content: 'Light!' },
      { role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'c1', toolName: 'lamp', input: { on: true } }] },
      { role: 'tool', content: [
        { type: 'tool-result', toolCallId: 'c1', toolName: 'lamp', output: { type: 'json', value: { isOn: true } } },
      ] },
      { role: 'user', content: 'And now?' },
    ];
    const answer = await generateText({ model: handy, messages, tools: { lamp }, ...settings(8) });
    assert.ok(answer.usage.inputTokens > 50);
  });
}
assert.equal(failed, 0, `${failed} cases fail`);
