"""What a transcript holds, whatever client wrote it: a session of steps, each one request and its answer.

A reader (one a client) turns records into `Step`s: the messages of the prompt, without the system prompt and
the tools, which no transcript keeps. `bodies` puts a constant block in front and makes `Request`s of them.
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
    """The file is none of the formats this room reads."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the provider reported for one request, in tokens; None where unknown.

    `prompt_tokens` is the whole prompt, cached parts included, in every format. Claude Code writes a
    streaming placeholder as output count, so that there `output_tokens` is None unless the line was final.
    `cache_write_1h` is the part of `cache_write` that is kept an hour.
    """

    prompt_tokens: int
    cache_read: int | None = None
    cache_write: int | None = None
    output_tokens: int | None = None
    cache_write_1h: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One request as the transcript shows it, and the messages that came back.

    `messages` is the full history, as if the client had never compacted. `sent` is what the client sent
    as far as the file tells: the same until its first compaction, afterwards its summary and what followed.
    `recorded` belongs to `sent`, unless the client cleared old results silently (then not `sent_known`).
    `parent` is the position of the step this one grew from.
    """

    messages: list[Message]
    sent: list[Message]
    reply: tuple[Message, ...]
    recorded: Recorded | None
    model: str
    branch: str
    segment: int = 0
    parent: int | None = None
    sent_at: str | None = None
    ids: tuple[str, ...] = ()
    agent_id: str = ""
    sent_known: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """A transcript read. `skipped` counts what was left out, `repaired` what was put in, both by reason."""

    path: Path
    client: Client
    format: Format
    session_id: str
    version: str
    steps: tuple[Step, ...]
    tools: Mapping[str, Mapping[str, Any]]
    """Name of each tool used → {"arguments": names seen, "kind": ..., "namespace": ...}."""
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the client wrote about itself and goes into the bodies, such as Codex' instructions."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the client would have sent it had it never compacted its history.

    Counts in `recorded` describe this very body only in segment 0. In a later segment they describe the
    compacted history (`sent`), but their differences within the segment still hold for the messages between.
    """

    index: int
    body: dict[str, Any]
    format: Format
    headers: dict[str, str]
    recorded: Recorded | None
    segment: int
    branch: str
    model: str
    sent_at: str | None
    parent: int | None
    ids: tuple[str, ...]
    reply: tuple[Message, ...]
    """What came back, as the next request holds it; empty where the client drops it (thinking alone)."""
    sent: list[Message]
    """What the client really sent as its history: `messages`, or after a compaction its summary and on."""
    sent_body: dict[str, Any]
    """The body that held `sent`; `body` itself until the client first compacted."""
    sent_known: bool
    """False after a silent clearing of old results: then the counts are of less than `sent`."""

    @property
    def messages(self) -> list[Message]:
        """The history of the body, under whatever key its format keeps it."""
        found: list[Message] = self.body["input" if self.format == "responses" else "messages"]
        return found


class Branches:
    """Names branches as they come up: a step that grows from a branch's last step stays on it."""

    def __init__(self) -> None:
        self._of: list[str] = []
        self._tips: dict[str, int] = {}
        self._forks = 0

    def place(self, parent: int | None, root: str = "main") -> str:
        """The branch of the next step, which grows from `parent`, or starts a thread called `root`."""
        name = root if parent is None else self._of[parent]
        if name in self._tips and self._tips[name] != parent:
            self._forks += 1
            name = f"{name.split('/')[0]}/{self._forks}"
        self._tips[name] = len(self._of)
        self._of.append(name)
        return name
