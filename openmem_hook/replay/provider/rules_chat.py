"""Chat completions as a strict reader, in the provider's own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import orjson

from openmem_hook.replay.provider import media
from openmem_hook.replay.provider.signatures import SignatureRegistry

BODY_LIMIT = 32 * 1024 * 1024
TOO_LARGE = "Request body too large"

Body = dict[str, Any]
Rule = Callable[[Body], Iterator[str]]

TOP_LEVEL = frozenset({
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options",
    "temperature", "top_p", "n", "stop", "max_tokens", "max_completion_tokens", "presence_penalty",
    "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "user", "seed", "response_format",
    "service_tier", "store", "metadata", "modalities", "audio", "prediction", "reasoning_effort",
    "verbosity", "web_search_options", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "functions", "function_call", "extra_body", "thinking",
})  # fmt: skip
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
PARTS = {
    "system": {"text"}, "developer": {"text"}, "tool": {"text"}, "assistant": {"text", "refusal"},
    "user": {"text", "image_url", "input_audio", "file"},
}  # fmt: skip


def check(body: Body, registry: SignatureRegistry | None = None) -> list[str]:
    """Every objection to a request body; an empty list means accepted. Nothing in this API is signed."""
    shape = [*_top_level(body)]
    if shape:
        return shape
    return [fault for rule in RULES for fault in rule(body)]


def _top_level(body: Body) -> Iterator[str]:
    for key in sorted(set(body) - TOP_LEVEL):
        yield f"Unrecognized request argument supplied: {key}"
    if "model" not in body:
        yield "you must provide a model parameter"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
        return
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            yield (
                f"Invalid value for 'messages[{at}].role'. Supported values are: 'system', 'assistant', 'user', "
                "'tool', and 'developer'."
            )


def _sizes(body: Body) -> Iterator[str]:
    if len(orjson.dumps(body)) > BODY_LIMIT:
        yield TOO_LARGE
    pictures = sum(1 for m in body["messages"] for p in parts_of(m) if p.get("type") in {"image_url", "file"})
    if pictures > media.MEDIA_LIMIT:
        yield f"Too many images in request: {pictures} > {media.MEDIA_LIMIT}"


def _ends(body: Body) -> Iterator[str]:
    roles = [message["role"] for message in body["messages"]]
    if "user" not in roles:
        yield "Invalid 'messages': at least one message with role 'user' is required."
    if roles[-1] not in {"user", "tool"}:
        yield (f"Invalid 'messages': the last message must have role 'user' or 'tool', but it has role '{roles[-1]}'.")


def _calls_have_answers(body: Body) -> Iterator[str]:
    messages = body["messages"]
    ids: set[str] = set()
    for at, message in enumerate(messages):
        calls = [str(call.get("id")) for call in calls_of(message)]
        for call in calls:
            if call in ids:
                yield f"Invalid 'messages[{at}].tool_calls': duplicate tool call id {call}."
            ids.add(call)
        if calls:
            results = takewhile(lambda later: later["role"] == "tool", messages[at + 1 :])
            answers = [str(result.get("tool_call_id")) for result in results]
            missing = [call for call in calls if call not in answers]
            if missing:
                yield (
                    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                    "'tool_call_id'. The following tool_call_ids did not have response messages: "
                    f"{', '.join(missing)}"
                )


def _answers_have_calls(body: Body) -> Iterator[str]:
    open_calls: set[str] = set()
    answers: set[str] = set()
    for at, message in enumerate(body["messages"]):
        if message["role"] != "tool":
            open_calls, answers = {str(call.get("id")) for call in calls_of(message)}, set()
            continue
        call = message.get("tool_call_id")
        if not isinstance(call, str) or not call:
            yield f"Missing required parameter: 'messages[{at}].tool_call_id'."
        elif call in answers:
            yield f"Invalid parameter: 'messages[{at}]' answers 'tool_call_id' {call} a second time."
        elif call not in open_calls:
            yield (
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                f"'tool_calls'. (messages[{at}].role, {call})"
            )
        answers.add(str(call))


def _contents(body: Body) -> Iterator[str]:
    for at, message in enumerate(body["messages"]):
        content = message.get("content")
        if message["role"] == "assistant":
            yield from _assistant(at, message)
        elif content is None:
            yield f"Invalid value for 'content': expected a string, got null. (messages[{at}].content)"
        elif content == [] or (content == "" and message["role"] != "tool"):
            yield f"Invalid 'messages[{at}].content': content must not be empty."
        elif not isinstance(content, str | list):
            yield f"Invalid type for 'messages[{at}].content': expected one of a string or array of objects."
        yield from _parts(at, message)


def _assistant(at: int, message: Body) -> Iterator[str]:
    if not message.get("content") and not message.get("tool_calls") and not message.get("refusal"):
        yield f"Invalid 'messages[{at}]': an assistant message must have either 'content' or 'tool_calls'."
    if "tool_calls" in message and not message["tool_calls"]:
        yield (
            f"Invalid 'messages[{at}].tool_calls': empty array. Expected an array with minimum length 1, but got an "
            "empty array instead."
        )
    for spot, call in enumerate(calls_of(message)):
        place = f"messages[{at}].tool_calls[{spot}]"
        kind = call.get("type")
        if not isinstance(call.get("id"), str) or not call["id"]:
            yield f"Missing required parameter: '{place}.id'."
        if kind not in {"function", "custom"}:
            yield f"Invalid value for '{place}.type'. Supported values are: 'function' and 'custom'."
            continue
        inner, field = call.get(kind), "arguments" if kind == "function" else "input"
        if not isinstance(inner, dict) or not inner.get("name"):
            yield f"Missing required parameter: '{place}.{kind}.name'."
        elif not isinstance(inner.get(field), str):
            yield f"Invalid type for '{place}.{kind}.{field}': expected a string, but got an object instead."
        elif kind == "function" and not _is_object(inner[field]):
            yield f"Invalid '{place}.function.arguments': not a JSON object."


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _parts(at: int, message: Body) -> Iterator[str]:
    for spot, part in enumerate(parts_of(message)):
        place = f"messages[{at}].content[{spot}]"
        kind = part.get("type")
        if kind not in PARTS[message["role"]]:
            yield (
                f"Invalid value: '{kind}'. Supported values for '{place}.type' are: {sorted(PARTS[message['role']])}."
            )
        elif kind == "text" and (not isinstance(part.get("text"), str) or not part["text"]):
            yield f"Invalid '{place}.text': text must be a non-empty string."
        elif kind == "image_url":
            address = part.get("image_url")
            fault = media.url_fault(address.get("url") if isinstance(address, dict) else address)
            if fault:
                yield f"{fault} ({place})"
        elif kind == "file":
            file = part.get("file")
            if not isinstance(file, dict) or not (file.get("file_id") or file.get("file_data")):
                yield f"Missing required parameter: '{place}.file'."
            elif "file_data" in file and media.file_fault(file["file_data"]):
                yield f"{media.file_fault(file['file_data'])} ({place})"


def calls_of(message: Body) -> list[Body]:
    """The tool calls of a message."""
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def parts_of(message: Body) -> list[Body]:
    """The parts of a message's content; none where it is a string."""
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


RULES: tuple[Rule, ...] = (_sizes, _ends, _calls_have_answers, _answers_have_calls, _contents)
