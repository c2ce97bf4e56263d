#!/usr/bin/env python3
"""Asks a server as Home Assistant's integrations `ollama` and `openai_conversation` do: what they send, and what they read
of what comes. Usage: test-assistant.py HOST:PORT KEY

The server has a model that knows tools. Its weights are random, so that what it says is any text."""

import asyncio
import json
import sys

import ollama
import openai

ADDRESS, KEY = sys.argv[1:]
MODEL = "qwen3-tiny"
ROUNDS_MAX = 10
PROMPT = "You are a voice assistant for Home Assistant.\nAnswer questions about the world truthfully."
NAMES = {"type": "object", "properties": {
    "name": {"type": "string"},
    "area": {"type": "string"},
    "floor": {"type": "string"},
    "domain": {"type": "array", "items": {"type": "string"}},
    "device_class": {"type": "array", "items": {"type": "string", "enum": ["tv", "outlet", "shade"]}},
}, "required": []}
POSITION = {"type": "object", "properties": {
    "name": {"type": "string"},
    "position": {"type": "integer", "minimum": 0, "maximum": 100},
}, "required": ["position"]}
TOOLS = [
    ("HassTurnOn", "Turns on/opens/presses a device or entity", NAMES),
    ("HassTurnOff", "Turns off/closes a device or entity", NAMES),
    ("HassSetPosition", "Sets the position of a device or entity", POSITION),
    ("GetLiveContext", "Provides real-time information about the state of devices", {"type": "object", "properties": {}}),
]
# A task's form, as integrations make it of a selector.
FORM = {"type": "object", "additionalProperties": False, "required": ["lights_on", "mood"],
        "properties": {"lights_on": {"type": "integer", "minimum": 0, "maximum": 9},
                       "mood": {"type": "string", "enum": ["good", "bad"]}}}


async def by_ollama(client):
    """The integration `ollama`: a stream each round, until there are no calls."""
    models = await client.list()
    # The one that is listed is asked for, with its tag.
    [named] = [model["model"] for model in models["models"]]
    assert named.split(":")[0] == MODEL, models
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters, "description": description}}
             for name, description, parameters in TOOLS]

    async def stream(messages, seed, think, form=None, n=40):
        options = {"num_ctx": 1024, "seed": seed, "num_predict": n}
        parts = await client.chat(model=named, messages=messages, tools=None if form else tools, stream=True,
                                  keep_alive="-1s", options=options, think=think, format=form)
        said = {"role": "assistant", "content": "", "thinking": None, "tool_calls": []}
        async for part in parts:
            message = part["message"]
            said["content"] += message.get("content") or ""
            if thought := message.get("thinking"):
                said["thinking"] = (said["thinking"] or "") + thought
            for call in message.get("tool_calls") or []:
                said["tool_calls"].append(
                    {"function": {"name": call["function"]["name"], "arguments": dict(call["function"]["arguments"])}})
            if part["done"]:
                assert part["done_reason"] in ("stop", "length") and part["prompt_eval_count"] > 0, part
        return ollama.Message(**said)

    for seed, think in [(1, False), (2, True), (3, False)]:
        messages = [ollama.Message(role="system", content=PROMPT), ollama.Message(role="user", content="Light!")]
        for _ in range(ROUNDS_MAX):
            said = await stream(messages, seed, think)
            messages.append(said)
            for call in said.tool_calls or []:
                assert call.function.name in [name for name, _, _ in TOOLS], call
                messages.append(ollama.Message(role="tool", content=json.dumps({"speech": {}, "success": True})))
            if not said.tool_calls:
                break
        # A call and its result, whether the model has made one or not.
        call = {"function": {"name": "HassTurnOn", "arguments": {"name": "lamp", "domain": ["light"]}}}
        messages += [ollama.Message(role="user", content="Again!"),
                     ollama.Message(role="assistant", content=None, tool_calls=[call]),
                     ollama.Message(role="tool", content=json.dumps({"success": True}))]
        await stream(messages, seed, think)
    formed = await stream(messages, 1, False, FORM, 400)
    assert json.loads(formed.content).keys() == {"lights_on", "mood"}, formed


async def by_openai(client):
    """The integration `openai_conversation`: the protocol of responses, by events."""
    await client.with_options(timeout=10.0).models.list()
    tools = [{"type": "function", "name": name, "parameters": parameters, "description": description, "strict": False}
             for name, description, parameters in TOOLS]

    async def stream(messages, choice="auto", **more):
        wishes = {"model": MODEL, "input": messages, "max_output_tokens": 200, "top_p": 1.0, "temperature": 1.0,
                  "user": "01JQ0000000000000000000000", "store": False, "service_tier": "auto", "stream": True,
                  "include": ["reasoning.encrypted_content"], **more}
        if choice:
            wishes |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": True}
        items, text, arguments, usage = [], "", {}, None
        async for event in await client.responses.create(**wishes):
            match event.type:
                case "response.output_item.added" if event.item.type == "function_call":
                    arguments[event.output_index] = ""
                case "response.output_text.delta":
                    text += event.delta
                case "response.function_call_arguments.delta":
                    arguments[event.output_index] += event.delta
                case "response.function_call_arguments.done":
                    assert arguments[event.output_index] == event.arguments, event
                case "response.output_item.done":
                    items.append(event.item)
                case "response.completed" | "response.incomplete":
                    usage = event.response.usage
                case "response.failed" | "error":
                    raise AssertionError(event)
        assert usage and usage.input_tokens > 0 and usage.output_tokens > 0, usage
        return text, [item for item in items if item.type == "function_call"]

    messages = [{"type": "message", "role": "developer", "content": PROMPT},
                {"type": "message", "role": "user", "content": "Light!"}]
    n_calls = 0
    for choice in ["required", "required", "auto", {"type": "function", "name": "HassSetPosition"}, "auto"]:
        text, calls = await stream(messages, choice)
        if text:
            messages.append({"type": "message", "role": "assistant", "content": text})
        for call in calls:
            # Random weights may write a string for ever.
            if call.status == "incomplete":
                continue
            n_calls += 1
            assert isinstance(json.loads(call.arguments), dict), call
            messages += [{"type": "function_call", "name": call.name, "arguments": call.arguments, "call_id": call.call_id},
                         {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"success": True})}]
        if messages[-1]["type"] == "message":
            messages.append({"type": "message", "role": "user", "content": "And now?"})
    assert n_calls > 0, "every call was cut"
    form = {"format": {"type": "json_schema", "name": "task", "schema": FORM, "strict": True}}
    text, _ = await stream(messages[:2], None, text=form)
    assert json.loads(text).keys() == {"lights_on", "mood"}, text


async def main():
    await by_ollama(ollama.AsyncClient(f"http://{ADDRESS}", headers={"Authorization": f"Bearer {KEY}"}))
    print("Home Assistant's ollama: as it should be", file=sys.stderr)
    await by_openai(openai.AsyncOpenAI(base_url=f"http://{ADDRESS}/v1", api_key=KEY, max_retries=0))
    print("Home Assistant's openai_conversation: as it should be", file=sys.stderr)


asyncio.run(main())
