#!/usr/bin/env python3
"""Asks a server of the demo model with the packages pydantic-ai, instructor or llama-index.

Usage: test-frameworks.py HOST:PORT HOST:PORT KEY PACKAGE...

The second server has a model that knows tools. Its weights are random: calls that have to come are looked at, and what
comes after them is any text."""

import asyncio
import sys
from typing import Iterable, Literal

import openai
import pydantic

ADDRESS, TOOLS_ADDRESS, KEY, *PACKAGES = sys.argv[1:]
QUESTION = "Tell me a story about a fox."


class Fox(pydantic.BaseModel):
    """A fox."""
    model_config = pydantic.ConfigDict(extra="forbid")
    colour: Literal["red", "white"]
    is_brave: bool
    age: int = pydantic.Field(ge=0, le=9)


def lamp(on: bool) -> str:
    """Turns the lamp on or off."""
    return "on" if on else "off"


def usual_text():
    client = openai.OpenAI(base_url=f"http://{ADDRESS}/v1", api_key=KEY, max_retries=0)
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=40)
    return answer.choices[0].message.content


def by_pydantic_ai(text):
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, Tool, ToolOutput
    from pydantic_ai.exceptions import UnexpectedModelBehavior
    from pydantic_ai.messages import ToolCallPart, ToolReturnPart
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def model(address, name, kind=OpenAIChatModel):
        return kind(name, provider=OpenAIProvider(base_url=f"http://{address}/v1", api_key=KEY))

    wishes = {"temperature": 0, "max_tokens": 40}
    agent = Agent(model(ADDRESS, "demo"), model_settings=wishes)
    first = agent.run_sync(QUESTION)
    assert first.output == text, first
    again = agent.run_sync("And then?", message_history=first.all_messages())
    assert again.usage.input_tokens > first.usage.input_tokens, again

    async def stream():
        async with agent.run_stream(QUESTION) as parts:
            return [part async for part in parts.stream_text(delta=True, debounce_by=None)]

    assert "".join(asyncio.run(stream())) == text
    responses = Agent(model(ADDRESS, "demo", OpenAIResponsesModel), model_settings=wishes)
    assert responses.run_sync(QUESTION).output == text
    for form in [NativeOutput(Fox), PromptedOutput(Fox)]:
        formed = Agent(model(ADDRESS, "demo"), output_type=form, model_settings={"max_tokens": 80, "temperature": 0})
        try:
            assert isinstance(formed.run_sync(QUESTION).output, Fox)
        except UnexpectedModelBehavior:
            # Words alone ask for the form, which the demo model does not follow.
            assert isinstance(form, PromptedOutput)

    async def once(context, definition):
        """Leaves the lamp out once it was called: the form has to come then."""
        is_over = any(isinstance(part, ToolReturnPart) for message in context.messages for part in message.parts)
        return None if is_over else definition

    for kind in [OpenAIChatModel, OpenAIResponsesModel]:
        rounds = 0
        for _ in range(8):
            settings = {"max_tokens": 300, "parallel_tool_calls": False}
            tooled = Agent(model(TOOLS_ADDRESS, "qwen3-tiny", kind), tools=[Tool(lamp, prepare=once)],
                           output_type=ToolOutput(Fox), model_settings=settings, retries=3)
            done = tooled.run_sync("Light!")
            assert isinstance(done.output, Fox), done
            parts = [part for message in done.all_messages() for part in message.parts]
            calls = [part for part in parts if isinstance(part, ToolCallPart) and part.tool_name == "lamp"]
            ids = [part.tool_call_id for part in parts if isinstance(part, ToolReturnPart)]
            assert all(call.tool_call_id in ids for call in calls), parts
            rounds += bool(calls)
        assert rounds > 0, "no call of the lamp in eight conversations"


def by_instructor(_text):
    import instructor

    wishes = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 120, "max_retries": 0}
    for mode, address, name in [
        (instructor.Mode.TOOLS, TOOLS_ADDRESS, "qwen3-tiny"),
        (instructor.Mode.TOOLS_STRICT, TOOLS_ADDRESS, "qwen3-tiny"),
        (instructor.Mode.JSON_SCHEMA, ADDRESS, "demo"),
        (instructor.Mode.JSON_SCHEMA, TOOLS_ADDRESS, "qwen3-tiny"),
    ]:
        plain = openai.OpenAI(base_url=f"http://{address}/v1", api_key=KEY, max_retries=0)
        client = instructor.from_openai(plain, mode=mode)
        fox = client.chat.completions.create(model=name, response_model=Fox, seed=1, **wishes)
        assert isinstance(fox, Fox), fox
        parts = list(client.chat.completions.create_partial(model=name, response_model=Fox, seed=1, **wishes))
        assert len(parts) > 1 and parts[-1].colour in ("red", "white"), parts[-1]
        many = client.chat.completions.create(model=name, response_model=Iterable[Fox], seed=2, **{**wishes, "max_tokens": 900})
        assert all(isinstance(one, Fox) for one in many)
    plain = openai.AsyncOpenAI(base_url=f"http://{ADDRESS}/v1", api_key=KEY, max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    fox = asyncio.run(client.chat.completions.create(model="demo", response_model=Fox, **wishes))
    assert isinstance(fox, Fox), fox


def by_llama_index(text):
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    wishes = {"temperature": 0, "max_tokens": 40, "max_retries": 0, "is_chat_model": True}
    def like(address, name, **more):
        return OpenAILike(model=name, api_base=f"http://{address}/v1", api_key=KEY, **{**wishes, **more})

    said = [ChatMessage(role="user", content=QUESTION)]
    demo = like(ADDRESS, "demo")
    assert demo.chat(said).message.content == text
    assert "".join(part.delta for part in demo.stream_chat(said)) == text
    assert demo.complete("Once upon a time").text and "".join(part.delta for part in demo.stream_complete(QUESTION))
    formed = like(ADDRESS, "demo", should_use_structured_outputs=True, max_tokens=80)
    assert isinstance(formed.as_structured_llm(Fox).chat(said).raw, Fox)
    tooled = like(TOOLS_ADDRESS, "qwen3-tiny", is_function_calling_model=True, max_tokens=200, temperature=1,
                  additional_kwargs={"seed": 3})
    tool = FunctionTool.from_defaults(lamp)
    history = [ChatMessage(role="user", content="Light!")]
    answer = tooled.chat_with_tools([tool], chat_history=history, tool_required=True)
    calls = tooled.get_tool_calls_from_response(answer)
    assert calls and all(call.tool_name == "lamp" for call in calls), answer
    history.append(answer.message)
    for call in calls:
        told = tool(**call.tool_kwargs)
        history.append(ChatMessage(
            role="tool", content=str(told), additional_kwargs={"tool_call_id": call.tool_id, "name": call.tool_name}))
    *_, last = tooled.stream_chat_with_tools([tool], chat_history=history, tool_required=True)
    assert tooled.get_tool_calls_from_response(last, error_on_no_tool_call=False), last
    assert tooled.chat_with_tools([tool], chat_history=history).message.content is not None
    by_llama_index_and_ollama(said, text)


def by_llama_index_and_ollama(said, text):
    """Through Ollama's protocol, whose client takes keys as a header."""
    import ollama
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.ollama import Ollama

    headers = {"Authorization": f"Bearer {KEY}"}
    def client(address, name, **more):
        clients = {"client": ollama.Client(f"http://{address}", headers=headers),
                   "async_client": ollama.AsyncClient(f"http://{address}", headers=headers)}
        return Ollama(model=name, context_window=1024, **clients, **more)

    demo = client(ADDRESS, "demo", temperature=0, additional_kwargs={"num_predict": 40})
    assert demo.chat(said).message.content == text
    assert "".join(part.delta for part in demo.stream_chat(said)) == text
    formed = client(ADDRESS, "demo", temperature=0, additional_kwargs={"num_predict": 80})
    fox = formed.structured_predict(Fox, PromptTemplate(QUESTION))
    assert isinstance(fox, Fox), fox
    handy = client(TOOLS_ADDRESS, "qwen3-tiny", additional_kwargs={"num_predict": 8, "seed": 1})
    assert handy.chat_with_tools([FunctionTool.from_defaults(lamp)], user_msg="Light!").message is not None


USES = {"pydantic-ai": by_pydantic_ai, "instructor": by_instructor, "llama-index": by_llama_index}
usual = usual_text()
for package in PACKAGES:
    USES[package](usual)
    print(f"{package}: as it should be", file=sys.stderr)
