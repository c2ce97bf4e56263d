#!/usr/bin/env python3
"""Asks a server of the demo model as its users' programs do. Usage: test-clients.py HOST:PORT HOST:PORT KEY

The second server has a model that knows tools."""

import json
import re
import sys
import time
import urllib.request

import ollama
import openai
import pydantic

ADDRESS, TOOLS_ADDRESS, KEY = sys.argv[1:]
MESSAGES = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me a story about a fox."},
]


def left(begin):
    """Begins streams until the server has seen a client go away: one may end before that."""
    def n_cancelled():
        asked = urllib.request.Request(f"http://{ADDRESS}/metrics", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(asked) as answer:
            return int(re.search(r"^leap_answers_cancelled_total (\d+)", answer.read().decode(), re.MULTILINE)[1])

    before = n_cancelled()
    for _ in range(20):
        stream = begin()
        next(iter(stream))
        stream.close()
        for _ in range(20):
            if n_cancelled() > before:
                return
            time.sleep(0.05)
    raise AssertionError("a client that left was not noticed")


def ask_by_openai():
    client = openai.OpenAI(base_url=f"http://{ADDRESS}/v1", api_key=KEY)
    assert [model.id for model in client.models.list()] == ["demo"]
    wishes = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    answer = client.chat.completions.create(**wishes)
    text = answer.choices[0].message.content
    assert answer.usage.completion_tokens == 40, answer
    parts = list(client.chat.completions.create(**wishes, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text
    assert parts[-1].usage.completion_tokens == 40, parts[-1]
    prompt = client.completions.create(model="demo", prompt="Once upon a time", temperature=0, max_tokens=8)
    assert prompt.choices[0].text == ", in a green valley, there lived", prompt
    left(lambda: client.chat.completions.create(**{**wishes, "max_tokens": 900}, stream=True))
    # Fields of other servers that change nothing.
    more = {"cache_prompt": True, "num_ctx": 4096, "mirostat": 0, "repeat_penalty": 1}
    answer = client.chat.completions.create(
        **wishes, reasoning_effort="minimal", verbosity="low", extra_body=more)
    assert answer.choices[0].message.content == text, answer
    responded(client)
    formed(client)
    refused(client)
    return text


def responded(client):
    wishes = {"model": "demo", "instructions": "You tell stories.", "temperature": 0}
    question = "Tell me a story about a fox."
    answer = client.responses.create(**wishes, input=question, max_output_tokens=40)
    assert (answer.status, answer.usage.output_tokens) == ("incomplete", 40), answer
    with client.responses.stream(**wishes, input=question, max_output_tokens=40) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == answer.output_text, text
    fox = client.responses.parse(**wishes, input=question, max_output_tokens=80, text_format=Fox)
    assert isinstance(fox.output_parsed, Fox), fox


class Fox(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    is_brave: bool


def formed(client):
    wishes = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 80}
    answer = client.chat.completions.parse(**wishes, response_format=Fox)
    assert isinstance(answer.choices[0].message.parsed, Fox), answer
    answer = client.chat.completions.create(**wishes, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content, answer
    assert all(token.top_logprobs[0].token == token.token for token in tokens), tokens


def ask_for_calls(address):
    """Asks a model that knows tools: it has to call one, and hears what came of it."""
    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key=KEY)
    parameters = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
                  "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "lamp", "parameters": parameters}}
    model = client.models.list().data[0].id
    call_in_response(client, model, parameters)
    wishes = {"model": model, "tools": [tool], "seed": 1, "max_tokens": 200}
    messages = [{"role": "user", "content": "Light!"}]
    answer = client.chat.completions.create(messages=messages, tool_choice="required", **wishes)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "lamp" and isinstance(json.loads(call.function.arguments)["on"], bool), call
    parts = client.chat.completions.create(messages=messages, tool_choice="required", stream=True, **wishes)
    calls = [part.choices[0].delta.tool_calls[0] for part in parts if part.choices[0].delta.tool_calls]
    deltas = [delta.function for delta in calls if delta.index == 0]
    assert deltas[0].name == "lamp" and "".join(d.arguments for d in deltas) == call.function.arguments, deltas
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    assert client.chat.completions.create(messages=messages, **wishes).usage.completion_tokens > 0


def call_in_response(client, model, parameters):
    tool = {"type": "function", "name": "lamp", "parameters": parameters, "strict": True}
    wishes = {"model": model, "tools": [tool], "extra_body": {"seed": 1}}
    messages = [{"role": "user", "content": "Light!"}]
    answer = client.responses.create(input=messages, tool_choice="required", parallel_tool_calls=False, **wishes)
    call = answer.output[0]
    assert call.name == "lamp" and isinstance(json.loads(call.arguments)["on"], bool), answer
    parts = client.responses.create(
        input=messages, tool_choice="required", parallel_tool_calls=False, stream=True, **wishes)
    deltas = [part.delta for part in parts if part.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments, deltas
    messages += [*answer.output, {"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
    assert client.responses.create(input=messages, max_output_tokens=5, **wishes).usage.output_tokens > 0


def refused(client):
    for wish, status, field in [
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"presence_penalty": 3}, 400, "presence_penalty"),
        ({"model": "gpt-4"}, 404, "model"),
    ]:
        try:
            client.chat.completions.create(**{"model": "demo", "messages": MESSAGES, **wish})
        except openai.APIStatusError as error:
            assert (error.status_code, error.body["param"]) == (status, field), error
        else:
            raise AssertionError(f"{wish} was followed")
    try:
        client.embeddings.create(model="demo", input="fox")
    except openai.BadRequestError as error:
        assert "not a model of embeddings" in error.body["message"], error
    else:
        raise AssertionError("there are embeddings")
    try:
        openai.OpenAI(base_url=client.base_url, api_key="wrong").models.list()
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


def ask_by_ollama(text):
    client = ollama.Client(host=f"http://{ADDRESS}", headers={"Authorization": f"Bearer {KEY}"})
    assert client.list().models[0].model == "demo:latest"
    assert client.ps().models[0].expires_at.year > 2100
    wishes = {"model": "demo", "messages": MESSAGES, "options": {"temperature": 0, "num_predict": 40}}
    assert client.chat(**wishes).message.content == text
    assert "".join(part.message.content for part in client.chat(**wishes, stream=True)) == text
    assert client.generate("demo").done_reason == client.chat("demo").done_reason == "load"
    assert client.generate("demo", keep_alive=0).done_reason == "unload"
    answer = client.chat(**wishes, format=Fox.model_json_schema())
    Fox.model_validate_json(answer.message.content)
    answer = client.chat(**wishes, logprobs=True, top_logprobs=2)
    assert "".join(token.token for token in answer.logprobs) == text, answer
    left(lambda: client.chat(**{**wishes, "options": {"temperature": 0}}, stream=True))
    for ask, status, word in [
        (lambda: client.embed("demo", "fox"), 400, "not a model of embeddings"),
        (lambda: client.chat("llama3", MESSAGES), 404, "llama3"),
        (lambda: ollama.Client(host=f"http://{ADDRESS}").list(), 401, "key"),
    ]:
        try:
            ask()
        except ollama.ResponseError as error:
            assert error.status_code == status and word in error.error, error
        else:
            raise AssertionError(f"{word} was followed")


def lamp(on: bool) -> str:
    """Turns the lamp on or off."""
    return str(on)


def ask_ollama_with_tools(address):
    """The protocol has no word for a call that has to come: the model hears of the tool and of one that was."""
    client = ollama.Client(host=f"http://{address}", headers={"Authorization": f"Bearer {KEY}"})
    model = client.list().models[0].model
    assert "tools" in client.show(model).capabilities
    call = {"function": {"name": "lamp", "arguments": {"on": True}}}
    wishes = {"model": model, "tools": [lamp], "options": {"seed": 1, "num_predict": 5}}
    short = client.chat(messages=[{"role": "user", "content": "Light!"}], **wishes)
    messages = [{"role": "user", "content": "Light!"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "lamp", "content": "done"}]
    assert client.chat(messages=messages, **wishes).prompt_eval_count > short.prompt_eval_count > 50


ask_by_ollama(ask_by_openai())
ask_for_calls(TOOLS_ADDRESS)
ask_ollama_with_tools(TOOLS_ADDRESS)
