"""What a transcript holds, whatever client wrote it: steps, each one request and its answer.

A reader (one a client) turns records into `Step`s: the messages of the prompt, without the system prompt and
the tools, which no transcript keeps. `bodies` puts a constant block in front and makes `ReplayRequest`s of them.
Message objects are shared between the steps, the lists are not: nobody may change a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Format = Literal["anthropic", "chat", "responses"]
Client = Literal["claude-code", "codex", "opencode"]
Record = dict[str, Any]
Message = dict[str, Any]


class UnknownTranscriptError(ValueError):
    """The file is none of the formats that can be read."""


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """What the provider reported for one request, in tokens; None where unknown."""

    prompt_tokens: int
    """The whole prompt, cached parts included, in every format."""

    cache_read: int | None = None
    """Of the prompt, what was read from the cache."""

    cache_write: int | None = None
    """Of the prompt, what was written to the cache."""

    output_tokens: int | None = None
    """The answer. Claude Code writes a streaming placeholder here, so that it counts only on a final line."""

    cache_write_1h: int | None = None
    """Of the writes, the part that is kept for an hour."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request as the transcript shows it, and the messages that came back."""

    messages: list[Message]
    """The full history, as if the client had never compacted it."""

    actual_messages: list[Message]
    """What the client sent as far as the file says: the same until its first compaction, afterwards its summary and
    what followed."""

    reply: tuple[Message, ...]
    """What came back, as the next request holds it; empty where the client drops it (thinking alone)."""

    usage: ReportedUsage | None
    """The provider's report on `actual_messages`, unless the client cleared old results silently."""

    model: str

    branch: str
    """The line of requests that grow from one another."""

    segment: int = 0
    """Number of compactions and silent clearings before it: counts compare within one segment only."""

    parent: int | None = None
    """Position of the step that this one grew from; None for the first of a line."""

    sent_at: str | None = None
    """When it was sent, in ISO 8601, as the file has it."""

    ids: tuple[str, ...] = ()
    """The client's ids of the answer or the turn, the first of which names it."""

    agent_id: str = ""
    """A sub-agent's id; "" for the main agent."""

    is_actual_known: bool = True
    """False after a silent clearing of old results: then less than `actual_messages` was sent."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else of the request its body needs, such as Codex's effort."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session of an agent, read from its file."""

    path: Path
    client: Client
    format: Format
    session_id: str

    version: str
    """The client's."""

    steps: tuple[Step, ...]

    tools: Mapping[str, Mapping[str, Any]]
    """Name of each tool with a call → {"arguments": their names, "kind": ..., "namespace": ...}."""

    omissions: Counter[str] = field(default_factory=Counter)
    """Number of records and parts that were left out, by reason."""

    repairs: Counter[str] = field(default_factory=Counter)
    """Number of messages and blocks that were put in or taken out to make legal requests, by reason."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What else the client wrote about itself and goes into the bodies, such as Codex's instructions."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request as the client would have sent it had it never compacted its history.

    The step's usage describes this very body only in segment 0. In a later segment it describes the compacted
    history, but differences within the segment still hold for the messages between.
    """

    index: int
    """Position of its step in the transcript."""

    step: Step
    format: Format

    headers: dict[str, str]
    """Those by which the client says who it is and which session this is."""

    body: dict[str, Any]

    actual_body: dict[str, Any]
    """The body with the step's `actual_messages`; `body` itself until the client first compacted."""

    @property
    def messages(self) -> list[Message]:
        """The history of the body, under whatever key its format keeps it."""
        messages: list[Message] = self.body["input" if self.format == "responses" else "messages"]
        return messages


class Branches:
    """Names branches as they come up: a step that grows from a branch's last step stays on it."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._last: dict[str, int] = {}
        self._forks = 0

    def add_step(self, parent: int | None, root: str = "main") -> str:
        """The branch of the next step, which grows from `parent`, or starts a line called `root`."""
        name = root if parent is None else self._names[parent]
        if name in self._last and self._last[name] != parent:
            self._forks += 1
            name = f"{name.split('/')[0]}/{self._forks}"
        self._last[name] = len(self._names)
        self._names.append(name)
        return name
