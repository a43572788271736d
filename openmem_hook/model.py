"""The values every wire format is decoded into.

A request is a `History`: the client's own message objects and, beside each, frozen `Facts` about it. The
objects are never changed; facts hold no message text, so that a session's facts can stay in memory. `Part`
is the passing view of one message while its facts are made, its row is written or a pointer quotes it.
`Adapter` says what one wire format can do: read a body, edit a message, finish the body that goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from openmem_hook.tokens import Sizes

Raw = Any
"""A message exactly as the client's JSON parsed: usually a dict, in Responses also a bare string."""

Format = Literal["anthropic", "chat", "responses"]
"""A wire format, by the name of its adapter."""

Role = Literal["system", "user", "assistant", "tool", "unknown"]
"""Who wrote a message, in the same words for every format; `unknown` where its API has no such role."""

MediaKind = Literal["image", "document", "audio"]

CallFamily = Literal[
    "tool",  # Messages
    "function",  # Chat Completions and Responses
    "function_call",  # the older kind of Chat Completions
    "custom",  # Responses, as all below
    "local_shell",
    "shell",
    "apply_patch",
    "computer",
    "tool_search",
]
"""A kind of call. Ids of two kinds may be equal, so that an id is always used with its family: `function:call_1`."""

PartKind = Literal[
    "text",
    "blank",  # only white space, or nothing
    "reminder",  # inserted by a client, no part of identity
    "notice",  # a client's text that nobody typed
    "command",  # the record of our own slash command
    "recap",  # a client's summary of its past
    "summarise",  # a client's request that the model writes one
    "thinking",
    "call",
    "result",
    "media",
    "reference",  # a deferred tool made known
    "server",  # an item of a tool that the provider runs
    "compaction",  # a provider's own
    "opaque",  # not understood: carried, counted, searched by its JSON
]
"""What one block of a message is."""

MessageKind = Literal[
    "typed",  # a person's words: begins a turn
    "mixed",  # results with typed words beside them
    "relayed",  # typed words that a client puts into a system message
    "notice",
    "recap",
    "summarise",
    "reply",  # a model's output without a call
    "call",
    "result",
    "reasoning",  # only thinking
    "system",
    "compaction",
    "unknown",
]
"""What a whole message is, by its role and its parts."""

INTERJECTIONS: tuple[MessageKind, ...] = ("mixed", "relayed")
"""Kinds of messages that hold a person's words and begin no turn: they came while the model worked."""


@dataclass(frozen=True, slots=True)
class Part:
    """One block of a message."""

    kind: PartKind
    text: str = ""
    """What a search should find."""
    identity: Any = None
    """The canonical value that this part adds to the message's digest; None adds nothing."""
    call_id: str = ""
    """The id of a call, or of the call that a result answers, behind its `CallFamily` and a colon."""
    name: str = ""
    """The tool that a call names."""
    index: int = 0
    """The place of the block in the list where it is: content, or the calls beside it."""
    media: tuple[MediaKind, ...] = ()
    """The kind of each picture, document and sound inside, in their order."""
    references: tuple[str, ...] = ()
    """Names of the deferred tools that it makes known."""
    is_signed: bool = False
    """Whether the provider signed it, so that it may only be sent back as it is."""
    signature: str = ""
    """The signature of thinking, or encrypted reasoning: counted, and what tells two of them apart."""
    text_alone: bool = True
    """False for a result with blocks, media aside, that no text can stand for."""


class ResultSlot(NamedTuple):
    """A tool result that could be shortened."""

    at: int
    """The `index` of its part."""
    call_id: str
    """The call that it answers, with its family."""
    chars: int
    """Length of its text in characters."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What decisions need to know of one message; no text."""

    role: Role
    """The adapter's role, but `tool` for every message of results alone, whatever the format calls it."""
    kind: MessageKind
    """What the message is, by its role and its parts."""
    digest: bytes
    """Hash of the message's meaning; see `fingerprint`."""
    identifies: bool
    """False where the message takes no part in identity (reasoning, reminders only): its digest names its row alone."""
    sizes: Sizes
    """How much of what it holds, for an estimate of its tokens."""
    bytes: int
    """Length of the message's JSON."""
    calls: tuple[str, ...] = ()
    """Ids of its calls, with their family."""
    answers: tuple[str, ...] = ()
    """Ids of the calls that its results answer, with their family."""
    results: tuple[ResultSlot, ...] = ()
    """Those of its results whose text may be replaced by a shorter one."""
    tool_names: tuple[str, ...] = ()
    """A name for each of `calls`."""
    references: tuple[str, ...] = ()
    """Names of the deferred tools that it makes known."""
    starts_with_thinking: bool = False
    """Whether its first part is thinking."""
    has_thinking: bool = False
    """Whether any of its parts is thinking."""
    has_text: bool = False
    """Whether it has text that is not blank; what a client wrote in a person's stead is none."""
    forces_trim: bool = False
    """Whether a person asks for a trim in it."""
    is_signed: bool = False
    """Whether the provider signed any of its parts."""
    media: int = 0
    """How many pictures, documents and sounds it holds."""


@dataclass(frozen=True, slots=True)
class History:
    """A decoded request. `messages`, `facts`, `keys` and `chain` run in parallel."""

    messages: Sequence[Raw]
    """The client's own objects."""
    facts: Sequence[Facts]
    keys: Sequence[bytes]
    """Key of each message's row in the store: its fingerprint, or the key of its position where it has no identity."""
    chain: Sequence[bytes]
    """Fingerprint of the history up to and with each message."""
    lead: int
    """How many messages at the front are the system prompt in message form: always sent as the client sent them."""
    overhead: Sizes
    """Sizes of system prompt and tools."""
    overhead_bytes: int
    """Length of the system prompt's text in characters and of the tools' JSON in bytes, together."""
    has_tools: bool
    """Whether the request offers any tool."""
    tool_names: frozenset[str]
    """Names of the tools that it offers, empty for one without a name."""
    deferred_tools: frozenset[str]
    """Names of the tools that the model knows only by a reference to them."""
    must_start_with_thinking: bool
    """Whether the provider wants the first kept output of a running turn to start with thinking."""
    compaction_at: int = 0
    """Index of a provider's compaction, 0 for none: the messages from `lead` to there cost nothing."""
    editable_from: int = 0
    """No new edit touches a message before: `lead`, or the end of the provider's compaction."""
    format: Format | Literal[""] = ""
    """The adapter's name; empty in a history that no adapter read."""

    def __len__(self) -> int:
        return len(self.keys)


class KeyedFacts(NamedTuple):
    """A history's facts with the keys and the chain that follow from them. Nothing in it is ever changed."""

    facts: Sequence[Facts]
    keys: Sequence[bytes]
    chain: Sequence[bytes]
    """These three as in `History`."""
    lead: int
    """As in `History`: the messages before take no part in the chain."""


Pause = Callable[[], object]
"""Called between two pieces of long work, so that others may run."""


def no_pause() -> None:
    pass


class FileMention(NamedTuple):
    """A file that a tool call names."""

    path: str
    """The path as the call has it."""
    is_written: bool
    """Whether the call writes the file; else it reads it."""


@dataclass(slots=True)
class HistoryCache:
    """What was derived from exact bytes: resent messages and tools are hashed, not looked at again.

    The keys are Python's own keyed hashes: a third of the time of a digest, and a whole history is hashed with
    every request. Nothing outside this process and session meets them.
    """

    facts: dict[int, Facts] = field(default_factory=dict)
    """Facts about each message, by the hash of its JSON."""
    overheads: dict[int, Sizes] = field(default_factory=dict)
    """Sizes of system prompt and tools, by the hash of their text."""
    files: dict[bytes, Sequence[FileMention]] = field(default_factory=dict)
    """Files that the calls of an output name, by its digest; every cut looks at all that it takes out."""
    newest: KeyedFacts = field(default_factory=lambda: KeyedFacts((), [], [], 0))
    """Facts, keys and chain of the newest history; those of the next one are computed from where it differs."""


class Reader(Protocol):
    """What reads a body of one wire format. All of it is pure, and nothing given in is ever changed."""

    @property
    def name(self) -> Format: ...
    @property
    def call_types(self) -> frozenset[str]:
        """The gateway's call types whose body may have this format."""

    @property
    def messages_key(self) -> str:
        """Where in a body the messages are."""

    @property
    def references_define(self) -> bool:
        """Whether a tool reference defines the tool, so that `tools` need not."""

    def matches(self, body: Mapping[str, Any], is_declared: bool) -> bool:
        """Whether this is a conversation in this format. `is_declared`: the call type says that the body is of this
        API, otherwise only its shape can tell."""

    def lead_of(self, messages: Sequence[Raw]) -> int:
        """How many messages at the front are the system prompt: they are never edited."""

    def role_of(self, raw: Raw) -> Role: ...
    def parts_of(self, raw: Raw) -> list[Part]:
        """The message's blocks in their order. Any JSON value is read: what nobody understands is an opaque part."""

    def system_of(self, body: Mapping[str, Any]) -> Any:
        """What stands before the messages and counts as prompt, tools aside: a string, blocks, or None."""

    def must_start_with_thinking(self, body: Mapping[str, Any]) -> bool:
        """Whether the provider wants a running turn's first output to start with thinking."""


class Editor(Protocol):
    """What edits a message of one wire format. Each function gives a new message and leaves the old one as it is."""

    def shorten_result(self, raw: Raw, index: int, text: str) -> Raw:
        """The message with this text in the place of that of one result, the part with this index. Ids, flags and
        other blocks stay, and so does a breakpoint."""

    def freeze_message(self, raw: Raw, keep_thinking: bool) -> Raw | None:
        """The message as it is kept in the head of a trimmed history: without breakpoints, and without thinking where
        the API takes it so. None where nothing would be left of it."""

    def with_pointer(self, raw: Raw, text: str) -> Raw:
        """The typed message with the pointer before its words."""


class Finisher(Protocol):
    """What finishes the body that goes out: each function gives a new body or list."""

    def with_note(self, body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
        """The body with these messages and the note at the end of its system prompt, in the shape that the client
        used, and only once."""

    def with_messages(self, body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
        """The body with these messages in the place of its own."""

    def with_marker(self, before: Sequence[Raw], after: list[Raw]) -> list[Raw]:
        """The outgoing messages (`after`), with a cache breakpoint again where an edit removed the last one of the
        client's (`before`)."""


class Adapter(Reader, Editor, Finisher, Protocol):
    """One wire format, both ways. Each module of `formats` that has all of it is one; mypy holds them to it."""
