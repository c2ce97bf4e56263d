#!/usr/bin/env python3
"""Asks a server of the demo model with langchain-openai and litellm. Usage: test-chains.py HOST:PORT HOST:PORT KEY

The second server has a model that knows tools."""

import json
import sys

import langchain_openai
import litellm
import openai
import pydantic
from langchain_openai import ChatOpenAI

ADDRESS, TOOLS_ADDRESS, KEY = sys.argv[1:]
QUESTION = "Tell me a story about a fox."


class Fox(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=20)
    is_brave: bool


def lamp(on: bool) -> str:
    """Turns the lamp on or off."""
    return str(on)


def fails(ask, kind, word):
    try:
        ask()
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"{word}: this was followed")


def chained(address, model, **wishes):
    return ChatOpenAI(base_url=f"http://{address}/v1", api_key=KEY, model=model, max_retries=0, **wishes)


def ask_by_langchain():
    model = chained(ADDRESS, "demo", temperature=0, max_tokens=40)
    text = model.invoke(QUESTION).content
    assert text and "".join(part.content for part in model.stream(QUESTION)) == text
    responses = chained(ADDRESS, "demo", temperature=0, max_tokens=40, use_responses_api=True)
    assert responses.invoke(QUESTION).text == text
    fox = chained(ADDRESS, "demo", temperature=0, max_tokens=80).with_structured_output(Fox, method="json_schema")
    assert isinstance(fox.invoke(QUESTION), Fox)
    told = model.bind(logprobs=True).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in told) == text
    for part in chained(ADDRESS, "demo", max_tokens=900).stream(QUESTION):
        break
    embeddings = langchain_openai.OpenAIEmbeddings(
        base_url=f"http://{ADDRESS}/v1", api_key=KEY, model="demo", max_retries=0, check_embedding_ctx_length=False)
    fails(lambda: embeddings.embed_query("fox"), openai.BadRequestError, "not a model of embeddings")
    stranger = ChatOpenAI(base_url=f"http://{ADDRESS}/v1", api_key="wrong", model="demo", max_retries=0)
    fails(lambda: stranger.invoke(QUESTION), openai.AuthenticationError, "key")
    tools = chained(TOOLS_ADDRESS, "qwen3-tiny", seed=1, max_tokens=200).bind_tools([lamp], tool_choice="lamp")
    call = tools.invoke("Light!").tool_calls[0]
    assert call["name"] == "lamp" and isinstance(call["args"]["on"], bool), call
    return text


def ask_by_litellm(text):
    wishes = {"model": "openai/demo", "api_base": f"http://{ADDRESS}/v1", "api_key": KEY, "num_retries": 0,
              "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
    answer = litellm.completion(**wishes, logprobs=True)
    assert answer.choices[0].message.content == text and answer.choices[0].logprobs
    parts = litellm.completion(**wishes, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text
    for part in litellm.completion(**{**wishes, "max_tokens": 900}, stream=True):
        break
    formed = litellm.completion(**{**wishes, "max_tokens": 80}, response_format=Fox)
    Fox.model_validate_json(formed.choices[0].message.content)
    tool = {"type": "function", "function": {"name": "lamp", "parameters": {
        "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}}}
    called = litellm.completion(model="openai/qwen3-tiny", api_base=f"http://{TOOLS_ADDRESS}/v1", api_key=KEY, seed=1,
                                messages=wishes["messages"], tools=[tool], tool_choice="required", max_tokens=200)
    call = called.choices[0].message.tool_calls[0].function
    assert call.name == "lamp" and isinstance(json.loads(call.arguments)["on"], bool), call
    embed = {"model": "openai/demo", "api_base": wishes["api_base"], "api_key": KEY, "input": ["fox"]}
    fails(lambda: litellm.embedding(**embed), litellm.BadRequestError, "not a model of embeddings")
    fails(lambda: litellm.completion(**{**wishes, "api_key": "wrong"}), litellm.AuthenticationError, "key")


ask_by_litellm(ask_by_langchain())
