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

PartKind = Literal[
    "text",
    "blank",  # only white space, or nothing
    "reminder",  # inserted by a client, no part of identity
    "notice",  # a client's text that nobody typed
    "command",  # the record of our own slash command
    "recap",  # a client's summary of its past
    "summarise",  # a client that asks the model for one
    "thinking",
    "call",
    "result",
    "media",
    "reference",  # a deferred tool made known
    "server",  # an item of a tool that the provider runs
    "compaction",  # a provider's own
    "opaque",  # not understood: carried, counted, found by its JSON
]

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
    """With its family, so that ids of two kinds of calls can't meet: `function:call_1`."""
    name: str = ""
    """The tool that a call names."""
    index: int = 0
    """Its place among the blocks of its message."""
    media: tuple[str, ...] = ()
    """A kind (`image`, `document`, …) for each picture and document inside."""
    references: tuple[str, ...] = ()
    """Deferred tools that it makes known, by name."""
    is_signed: bool = False
    """Whether the provider signed it, so that it may only be sent back as it is."""
    signature: str = ""
    """Of thinking, or encrypted reasoning: counted, and what tells two of them apart."""
    text_alone: bool = True
    """False for a result with blocks, media aside, that no text can stand for."""


class ResultSlot(NamedTuple):
    """A tool result that could be shortened."""

    at: int
    """The block of its message."""
    call_id: str
    chars: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What decisions need to know of one message; no text."""

    role: Role
    kind: MessageKind
    digest: bytes
    """Hash of the message's meaning; see `fingerprint`."""
    identifies: bool
    """False where the message takes no part in identity (reasoning, reminders only): its digest names its row alone."""
    sizes: Sizes
    bytes: int
    """Length of the message's JSON."""
    calls: tuple[str, ...] = ()
    """Ids of its calls, with their family."""
    answers: tuple[str, ...] = ()
    """Ids of the calls that its results answer."""
    results: tuple[ResultSlot, ...] = ()
    tool_names: tuple[str, ...] = ()
    """A name for each of `calls`."""
    references: tuple[str, ...] = ()
    starts_with_thinking: bool = False
    has_thinking: bool = False
    has_text: bool = False
    forces_trim: bool = False
    """Whether a person asks for a trim in it."""
    is_signed: bool = False
    media: int = 0
    """Pictures and documents."""


@dataclass(frozen=True, slots=True)
class History:
    """A decoded request. `messages`, `facts`, `keys` and `chain` run in parallel."""

    messages: Sequence[Raw]
    """The client's own objects."""
    facts: Sequence[Facts]
    keys: Sequence[bytes]
    """Row key of each message: its fingerprint, or the key of its position where it has no identity."""
    chain: Sequence[bytes]
    """The fingerprint after each message."""
    lead: int
    """How many messages at the front are the system prompt in message form: always sent as the client sent them."""
    overhead: Sizes
    """Of system prompt and tools."""
    overhead_bytes: int
    """JSON length of system prompt and tools."""
    has_tools: bool
    tool_names: frozenset[str]
    deferred_tools: frozenset[str]
    """Tools that the model knows only by a reference to them."""
    must_start_with_thinking: bool
    """Whether the provider wants the first kept output of a running turn to start with thinking."""
    compaction_at: int = 0
    """Index of a provider's compaction, 0 for none: the messages from `lead` to there cost nothing."""
    editable_from: int = 0
    """No new edit touches a message before: `lead`, or the end of the provider's compaction."""
    format: Format | Literal[""] = ""

    def __len__(self) -> int:
        return len(self.keys)


class KeyedFacts(NamedTuple):
    """A history's facts with the keys and the chain that follow from them. Nothing in it is ever changed."""

    facts: Sequence[Facts]
    keys: Sequence[bytes]
    chain: Sequence[bytes]
    lead: int
    """Messages before have no name of their own."""


Pause = Callable[[], object]
"""Called between two pieces of long work, so that others may run."""


def no_pause() -> None:
    pass


class FileMention(NamedTuple):
    """A file that a tool call names."""

    path: str
    is_written: bool


@dataclass(slots=True)
class HistoryCache:
    """What was derived from exact bytes: resent messages and tools are hashed, not looked at again.

    The keys are Python's own keyed hashes: a third of the time of a digest, and a whole history is hashed with
    every request. Nothing outside this process and session meets them.
    """

    facts: dict[int, Facts] = field(default_factory=dict)
    overheads: dict[int, Sizes] = field(default_factory=dict)
    """Sizes of system prompt and tools."""
    files: dict[bytes, Sequence[FileMention]] = field(default_factory=dict)
    """Files that the calls of an output name, by its digest; every cut looks at all that it takes out."""
    newest: KeyedFacts = field(default_factory=lambda: KeyedFacts((), [], [], 0))
    """The newest history's; the next one goes on where it differs."""


class Reader(Protocol):
    """What reads a body of one wire format. All pure; nothing given in is ever changed."""

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

    def matches(self, body: Mapping[str, Any], named: bool) -> bool:
        """Whether this is a conversation in this format; `named`: the call type says so already."""

    def lead_of(self, messages: Sequence[Raw]) -> int:
        """How many messages at the front are the system prompt."""

    def role_of(self, raw: Raw) -> Role: ...
    def parts_of(self, raw: Raw) -> list[Part]: ...
    def system_of(self, body: Mapping[str, Any]) -> Any:
        """What stands before the messages and counts as prompt, tools aside."""

    def must_start_with_thinking(self, body: Mapping[str, Any]) -> bool:
        """Whether the provider wants a running turn's first output to start with thinking."""


class Editor(Protocol):
    """What edits a message of one wire format: each function gives a new message."""

    def shorten_result(self, raw: Raw, index: int, text: str) -> Raw:
        """The message with the text of the result at this block replaced; ids, flags and other parts stay."""

    def freeze_message(self, raw: Raw, keep_thinking: bool) -> Raw | None:
        """The message as a head shows it, without breakpoints; None where nothing of it would be left."""

    def with_pointer(self, raw: Raw, text: str) -> Raw:
        """The typed message with the pointer before its words."""


class Finisher(Protocol):
    """What finishes the body that goes out."""

    def with_note(self, body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
        """The body with these messages and the note at the end of its system prompt, once."""

    def with_messages(self, body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]: ...
    def with_marker(self, before: Sequence[Raw], after: list[Raw]) -> list[Raw]:
        """The outgoing messages (`after`) with a cache breakpoint where an edit removed the last one of `before`."""


class Adapter(Reader, Editor, Finisher, Protocol):
    """One wire format, both ways. Each module of `formats` that has all of it is one; mypy holds them to it."""
