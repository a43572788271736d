"""The three agents: what Claude Code, Codex and OpenCode put into a request, as recorded from the real ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from . import chat_words, responses_words
from .agent import Agent, Json
from .builders import marked, reminder, text
from .filler import prose
from .sse import fold_anthropic, fold_chat, fold_responses

SYSTEM_CHARS = 6000


def _schema(*names: str) -> Json:
    types = {"size": "integer", "timeout": "integer"}
    return {"type": "object", "properties": {name: {"type": types.get(name, "string")} for name in names}}


class ClaudeCode(Agent):
    """Messages API. The breakpoint moves to the last message each time; a one-block message that loses it goes
    out as a plain string from then on. Results of parallel calls come in another order than the calls."""

    path = "/v1/messages?beta=true"

    def __init__(
        self,
        *args: Any,
        thinking: Json | None = None,
        mid_system: bool = False,
        server_search: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.thinking = thinking if thinking is not None else {"type": "adaptive"}
        self.mid_system, self.server_search = mid_system, server_search

    def headers(self) -> dict[str, str]:
        return {
            "x-claude-code-session-id": self.session,
            "user-agent": "claude-cli/2.1.332 (external, cli)",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        }

    def request(self) -> Json:
        user_id = orjson.dumps({"device_id": "kit", "account_uuid": "", "session_id": self.session}).decode()
        sent = [_plain(message) for message in self.history]
        sent[-1] = _marked(self.history[-1])
        body: Json = {
            "model": self.model, "max_tokens": 32000, "stream": self.stream, "thinking": self.thinking,
            "system": [
                text("x-anthropic-billing-header: cc_version=2.1.332.a1b; cc_entrypoint=cli"),
                marked(text("You are Claude Code, Anthropic's official CLI for Claude.")),
                marked(text(prose(SYSTEM_CHARS, "claude system"))),
            ],
            "tools": [
                {"name": "Read", "description": "Reads a file.", "input_schema": _schema("file_path", "size")},
                {"name": "Bash", "description": "Runs it.", "input_schema": _schema("command", "size")},
                {"name": "Write", "description": "Writes.", "input_schema": _schema("file_path", "content", "size")},
            ],
            "messages": sent, "metadata": {"user_id": user_id},
        }  # fmt: skip
        if self.server_search:
            body["tools"].append({"type": "web_search_20250305", "name": "web_search"})
        return body | self.extra

    def typed(self, words: str) -> list[Json]:
        blocks = [text(words)] if self.history else [reminder("Be brief."), text(words)]
        made: list[Json] = [{"role": "user", "content": blocks}]
        return made + self._told(600 if not self.history else 60)

    def _told(self, chars: int) -> list[Json]:
        """Newer versions say what they have to say in a message of its own behind each typed one and each result."""
        words = prose(chars, "told", len(self.history))
        return [{"role": "system", "content": [reminder(words)]}] if self.mid_system else []

    def is_typed(self, message: Json) -> bool:
        return bool(message["role"] == "user" and message["content"][0].get("type") != "tool_result")

    def kept(self, answer: Json) -> list[Json]:
        return [{"role": "assistant", "content": answer["content"]}]

    def results(self, answer: Json) -> list[Json]:
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        made = []
        for at, call in enumerate(calls):
            output = self.run(call["name"], call["input"])
            content: Any = [text(output)] if at % 2 else output
            made.append({"type": "tool_result", "tool_use_id": call["id"], "content": content})
        return [{"role": "user", "content": made[::-1]}, *self._told(60)] if made else []

    def text_of(self, answer: Json) -> str:
        return "".join(block["text"] for block in answer["content"] if block["type"] == "text")

    def after_break(self, body: Json) -> Json:
        return body | {"stream": False}

    def folded(self, stream: Iterable[Json]) -> Json:
        return fold_anthropic(stream)


def _plain(message: Json) -> Json:
    content = message["content"]
    if message["role"] != "assistant" and len(content) == 1 and content[0]["type"] == "text":
        return {**message, "content": content[0]["text"]}
    return message


def _marked(message: Json) -> Json:
    return {**message, "content": [*message["content"][:-1], marked(message["content"][-1])]}


class Codex(Agent):
    """Responses API, nothing stored: developer items first, encrypted reasoning sent back as it came."""

    path = "/v1/responses"

    def headers(self) -> dict[str, str]:
        return {"session-id": self.session, "thread-id": self.session, "originator": "codex_exec",
                "user-agent": "codex_exec/0.171.0"}  # fmt: skip

    def request(self) -> Json:
        body: Json = {
            "model": self.model, "store": False, "stream": self.stream, "parallel_tool_calls": True,
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "medium", "summary": "auto"},
            "prompt_cache_key": self.session, "tool_choice": "auto", "input": [*self._preamble(), *self.history],
            "tools": [
                {"type": "function", "name": "exec_command", "description": "Runs it.", "strict": False,
                 "parameters": _schema("cmd", "size")},
                {"type": "custom", "name": "apply_patch", "description": "Edits files."},
                {"type": "web_search"},
            ],
        }  # fmt: skip
        return body | self.extra

    def _preamble(self) -> list[Json]:
        environment = "<environment_context>\n  <cwd>project</cwd>\n</environment_context>"
        return [
            responses_words.developer(prose(SYSTEM_CHARS, "codex base")),
            responses_words.developer("<permissions instructions>\nread-only\n</permissions instructions>"),
            responses_words.user(environment),
        ]

    def typed(self, words: str) -> list[Json]:
        return [responses_words.user(words)]

    def is_typed(self, message: Json) -> bool:
        return bool(message.get("role") == "user")

    def kept(self, answer: Json) -> list[Json]:
        return [_echoed(item) for item in answer["output"]]

    def results(self, answer: Json) -> list[Json]:
        made: list[Json] = []
        for item in answer["output"]:
            if item["type"] == "function_call":
                output = self.run(item["name"], orjson.loads(item["arguments"]))
                made.append({**responses_words.output(item["call_id"], output), "id": f"fco_{item['call_id']}"})
            elif item["type"] == "custom_tool_call":
                made.append(responses_words.custom_output(item["call_id"], self.run(item["name"], item["input"])))
        return made

    def text_of(self, answer: Json) -> str:
        messages = [item for item in answer["output"] if item["type"] == "message"]
        return "".join(part["text"] for item in messages for part in item["content"])

    def folded(self, stream: Iterable[Json]) -> Json:
        return fold_responses(stream)


def _echoed(item: Json) -> Json:
    kept = {key: value for key, value in item.items() if key != "status" or item["type"] == "web_search_call"}
    return kept | ({"content": None} if item["type"] == "reasoning" else {})


class OpenCode(Agent):
    """Chat completions: one system string, an empty string beside calls, usage asked for in streams."""

    path = "/v1/chat/completions"

    def headers(self) -> dict[str, str]:
        return {"x-session-id": self.session, "x-session-affinity": self.session, "user-agent": "opencode/1.18.33"}

    def request(self) -> Json:
        body: Json = {"model": self.model, "stream": self.stream, "max_tokens": 32000}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        body["messages"] = [chat_words.system(prose(SYSTEM_CHARS, "opencode system")), *self.history]
        body["tools"] = [
            {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}
            for name, schema in (("read", _schema("filePath", "size")), ("bash", _schema("command", "size")))
        ]
        return body | self.extra

    def typed(self, words: str) -> list[Json]:
        return [chat_words.user(words)]

    def is_typed(self, message: Json) -> bool:
        return bool(message["role"] == "user")

    def kept(self, answer: Json) -> list[Json]:
        said = answer["choices"][0]["message"]
        made: Json = {"role": "assistant", "content": said.get("content") or ""}
        return [made | ({"tool_calls": said["tool_calls"]} if said.get("tool_calls") else {})]

    def results(self, answer: Json) -> list[Json]:
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        return [chat_words.result(call["id"], self._ran(call["function"])) for call in calls]

    def _ran(self, function: Json) -> str:
        return self.run(function["name"], orjson.loads(function["arguments"] or "{}"))

    def text_of(self, answer: Json) -> str:
        return str(answer["choices"][0]["message"].get("content") or "")

    def folded(self, stream: Iterable[Json]) -> Json:
        return fold_chat(stream)
