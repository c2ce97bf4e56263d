#!/usr/bin/env python3
"""Asks a server of the demo model as its users' programs do. Usage: test-clients.py HOST:PORT KEY"""

import sys

import ollama
import openai

ADDRESS, KEY = sys.argv[1:]
MESSAGES = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me a story about a fox."},
]


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
    refused(client)
    return text


def refused(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for wish, status, field in [
        ({"tools": [tool]}, 400, "tools"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"model": "gpt-4"}, 404, "model"),
    ]:
        try:
            client.chat.completions.create(**{"model": "demo", "messages": MESSAGES, **wish})
        except openai.APIStatusError as error:
            assert (error.status_code, error.body["param"]) == (status, field), error
        else:
            raise AssertionError(f"{wish} was followed")
    try:
        openai.OpenAI(base_url=client.base_url, api_key="wrong").models.list()
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


def ask_by_ollama(text):
    client = ollama.Client(host=f"http://{ADDRESS}", headers={"Authorization": f"Bearer {KEY}"})
    assert client.list().models[0].model == "demo:latest"
    wishes = {"model": "demo", "messages": MESSAGES, "options": {"temperature": 0, "num_predict": 40}}
    assert client.chat(**wishes).message.content == text
    assert "".join(part.message.content for part in client.chat(**wishes, stream=True)) == text
    try:
        client.chat(**wishes, format="json")
    except ollama.ResponseError as error:
        assert error.status_code == 400 and "format" in error.error, error
    else:
        raise AssertionError("a format was followed")


ask_by_ollama(ask_by_openai())
