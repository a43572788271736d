"""Histories as lines of tokens, one a message, for tests of rules that need no message text.

    history("T1 C1,2 R1,2 A1 T2 C3:think R3")

A token is a letter for what the message is, a label, and modifiers behind colons. Labels are identities: the same
token has the same digest in every history, so that drift, edits and forks are simply written as other lines. The label
of a call or a result is its call ids; a prime makes another message with the same ids (`R1'`). Modifiers take no part
in identity, as reasoning doesn't.

`messages` of such a history are the tokens without their modifiers, and the functions below that show a choice or the
active edits read them: `shape(history, choice)` is a line like `T1 A1 T2* | C3 R3`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openmem_hook import fingerprint
from openmem_hook.compaction import trim
from openmem_hook.compaction.active import ActiveEdits, find_digest_before, find_recent_outputs
from openmem_hook.compaction.edits import Cut, EditState, Splice, Swap
from openmem_hook.compaction.state import RowName, SessionState
from openmem_hook.compaction.threads import Thread
from openmem_hook.model import Facts, Format, History, MessageKind, ResultSlot, Role
from openmem_hook.tokens import ZERO, Sizes

LETTERS: Mapping[str, tuple[Role, MessageKind]] = {
    "T": ("user", "typed"),
    "M": ("user", "mixed"),  # results, and typed words beside them
    "N": ("user", "notice"),
    "Y": ("user", "recap"),
    "Q": ("user", "summarise"),
    "A": ("assistant", "reply"),
    "C": ("assistant", "call"),
    "V": ("assistant", "call"),  # of a tool that the provider runs: nothing answers it
    "K": ("assistant", "reasoning"),
    "P": ("assistant", "compaction"),
    "R": ("tool", "result"),
    "S": ("system", "system"),
    "W": ("system", "relayed"),
    "U": ("unknown", "unknown"),
}
_CALLING, _ANSWERING, _WITH_TEXT = "C", "RM", "TMASW"
MODIFIERS = frozenset({"think", "signed", "force", "unnamed", "refs", "tool", "chars", "media", "words", "bytes"})
CHARS = 100
"""Words and bytes of a message, and characters of each of its results, where no modifier says otherwise."""


def facts_of(token: str) -> Facts:
    """The facts that a token stands for. KeyError for a letter or a modifier that nobody knows.

    Modifiers: `think` or `think=N` (starts with thinking), `signed`, `force` (a person asks for a trim), `unnamed` (a
    reminder alone: not identifying), `refs=A+B` (deferred tools made known), `tool=A+B` (names of the tools called),
    `chars=N` (of each result), `media=N`, `words=N`, `bytes=N`.
    """
    label, *modifiers = token.split(":")
    options = {name: value for name, _, value in (modifier.partition("=") for modifier in modifiers)}
    if not MODIFIERS.issuperset(options):
        raise KeyError(f"no such modifier: {token}")
    letter, (role, kind) = label[0], LETTERS[label[0]]
    ids = tuple(label[1:].rstrip("'").split(","))
    calls = ids if letter in _CALLING else ()
    answers = ids if letter in _ANSWERING else ()
    has_thinking = letter == "K" or "think" in options
    thinking = int(options.get("think") or CHARS) if has_thinking else 0
    return Facts(
        role=role,
        kind=kind,
        digest=fingerprint.digest(label),
        identifies=letter != "K" and "unnamed" not in options,
        sizes=Sizes(words=int(options.get("words", CHARS)), thinking=thinking, parts=1),
        bytes=int(options.get("bytes", CHARS)),
        calls=calls,
        answers=answers,
        results=tuple(ResultSlot(at, call, int(options.get("chars", CHARS))) for at, call in enumerate(answers)),
        tool_names=(_names(options.get("tool", "read")) * len(calls))[: len(calls)],
        references=_names(options.get("refs", "")),
        starts_with_thinking=has_thinking,
        has_thinking=has_thinking,
        has_text=letter in _WITH_TEXT,
        forces_trim="force" in options,
        is_signed="signed" in options,
        media=int(options.get("media", 0)),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split("+") if name)


def history(
    line: str,
    *,
    lead: int = 0,
    deferred_tools: str = "",
    must_think: bool = False,
    has_tools: bool = True,
    format: Format = "anthropic",  # noqa: A002 - the field's name
) -> History:
    """The history that a line of tokens stands for; the first `lead` of them are the system prompt."""
    tokens = line.split()
    facts = [facts_of(token) for token in tokens]
    keys, chain = keys_and_chain(facts, lead)
    compaction_at, editable_from = compaction(facts, lead)
    return History(
        messages=[token.split(":")[0] for token in tokens],
        facts=facts,
        keys=keys,
        chain=chain,
        lead=lead,
        overhead=ZERO,
        overhead_bytes=0,
        has_tools=has_tools,
        tool_names=frozenset(),
        deferred_tools=frozenset(deferred_tools.split()),
        must_start_with_thinking=must_think,
        compaction_at=compaction_at,
        editable_from=editable_from,
        format=format,
    )


def keys_and_chain(facts: Sequence[Facts], lead: int) -> tuple[list[bytes], list[bytes]]:
    """Keys and chain of a history, as decoding makes them; `test_sketches` compares the two."""
    keys, chain, past = list[bytes](), list[bytes](), fingerprint.ROOT
    for i, fact in enumerate(facts):
        if fact.identifies and i >= lead:
            past = fingerprint.chain(past, fact.digest)
            keys.append(past)
        else:
            keys.append(fingerprint.position_key(past, fact.digest))
        chain.append(past)
    return keys, chain


def compaction(facts: Sequence[Facts], lead: int) -> tuple[int, int]:
    """Index of a provider's newest compaction, 0 for none, and the end of what belongs to it: the calls of the same
    output keep their results. `test_sketches` compares it with what decoding says."""
    at = max((i for i, fact in enumerate(facts) if fact.kind == "compaction"), default=None)
    if at is None:
        return 0, lead
    open_calls = set[str]()
    for end, fact in enumerate(facts, 1):
        open_calls = open_calls.union(fact.calls).difference(fact.answers)
        if end > at and not open_calls:
            return at, end
    return at, at + 1


def index(line: History, message: str | int) -> int:
    """The last place of a token in a history; a place is itself. ValueError where the token is not there."""
    return message if isinstance(message, int) else len(line) - 1 - list(reversed(line.messages)).index(message)


# --- what is known of a history ----------------------------------------------------------------------------


def state_of(*lines: History, thread: Thread | None = None, tokens: float | None = None) -> SessionState:
    """What a session knows that stored these histories in one thread, each message with so many measured tokens."""
    owner = thread or thread_of(lines[-1])
    rows = (
        RowName(line.keys[i], line.chain[i - 1] if i else fingerprint.ROOT, line.facts[i].digest, owner.id, tokens)
        for line in lines
        for i in range(len(line))
    )
    state = SessionState.of_rows(rows)
    return SessionState(state.row_tokens, state.row_keys, state.followers, state.owners, threads={owner.id: owner})


def thread_of(line: History, number: int = 1, agent: str = "", **more: Any) -> Thread:
    """A stored thread whose newest message is the last one of this history."""
    fields = {"name": f"main-{number}", "has_tools": True, "note": 1, "result_chars": 10_000, **more}
    return Thread(id=number, agent=agent, root=line.keys[line.lead], last_key=line.keys[-1], **fields)


# --- edits -------------------------------------------------------------------------------------------------


HEAD_SIZES = Sizes(words=10)


def cut(
    line: History,
    anchor: str | int,
    visible: str | Sequence[int] = "",
    *,
    start: str | int | None = None,
    state: EditState = "active",
    head: bytes = b"[]",
    head_sizes: Sizes = HEAD_SIZES,
) -> Cut:
    """A cut that was decided on this history: from the lead, or from the message `start`, to the anchor. `visible`:
    the tokens, or the places, of the messages that its head shows."""
    at = index(line, anchor)
    first = None if start is None else index(line, start)
    names = visible.split() if isinstance(visible, str) else visible
    return Cut(
        id=fingerprint.short_id(line.keys[at], str(start), head),
        reason="limit",
        generation=1,
        state=state,
        anchor=line.keys[at],
        anchor_digest=line.facts[at].digest,
        anchor_unique=bool(line.facts[at].calls or line.facts[at].answers),
        before=find_digest_before(line, at),
        recent_outputs=find_recent_outputs(line, at),
        head=head,
        head_sizes=head_sizes,
        shown_digests=tuple(
            facts_of(name).digest if isinstance(name, str) else line.facts[name].digest for name in names
        ),
        format=line.format,
        position=at - line.lead,
        start=None if first is None else line.keys[first],
        start_digest=None if first is None else line.facts[first].digest,
    )


def splice(line: History, message: str | int, *, state: EditState = "active", messages: bytes = b"[]") -> Splice:
    """A splice at a message of this history."""
    at = index(line, message)
    return Splice(
        id=fingerprint.short_id(line.keys[at], messages),
        reason="hidden",
        state=state,
        digest=line.facts[at].digest,
        past=line.chain[at - 1] if at else fingerprint.ROOT,
        messages=messages,
        recent_outputs=find_recent_outputs(line, at),
        format=line.format or "anthropic",
    )


def swap(
    line: History, message: str | int, call_id: str = "", *, state: EditState = "active", text: str = "short"
) -> Swap:
    """A swap of a message's result, the first one unless another is named."""
    fact = line.facts[index(line, message)]
    call = call_id or fact.answers[0]
    name = fingerprint.short_id(fact.digest, call)
    return Swap(id=name, reason="size", state=state, key=line.keys[index(line, message)], call_id=call, text=text)


# --- shapes ------------------------------------------------------------------------------------------------


def shape(line: History, choice: trim.Choice) -> str:
    """What the head of a choice shows, a bar, the tail. A star marks the message that carries the pointer; alone at the
    end of the head it is a message of its own."""
    head = [f"{line.messages[i]}*" if i == choice.carrier else str(line.messages[i]) for i in choice.head_indices]
    own = ["*"] if choice.carrier is None else []
    return _line([*head, *own, "|", *line.messages[choice.anchor + 1 :]])


def shapes(line: History, ranges: trim.Ranges = (), *, strict: bool = True) -> list[str]:
    """All choices in order."""
    return [shape(line, choice) for choice in trim.find_choices(line, ranges, strict)]


def active_shape(line: History, edits: ActiveEdits) -> str:
    """The history with the trim's range in brackets, those of inner cuts in parentheses, a tilde at a splice."""
    texts = [f"{message}~" if i in edits.splices else str(message) for i, message in enumerate(line.messages)]
    for active in edits.cuts:
        opening, closing = "[]" if active.cut.start is None else "()"
        texts[active.start] = opening + texts[active.start]
        texts[active.anchor] += closing
    return _line(texts)


def _line(words: Iterable[Any]) -> str:
    return " ".join(map(str, words))
