"""What a message is, by its role and the kinds of its parts, and what else decisions need to know of it."""

from __future__ import annotations

from typing import get_args

import pytest

from openmem_hook import tokens
from openmem_hook.facts import INTERJECTION_PREFIX, cached_facts, facts_of, sizes_of
from openmem_hook.formats import anthropic
from openmem_hook.model import Facts, HistoryCache, MessageKind, Part, PartKind, Role
from openmem_hook.tokens import ZERO, Sizes, measure

INTERJECTION = Part("text", f"  {INTERJECTION_PREFIX}\nFaster.")


def parts(*kinds: PartKind) -> list[Part]:
    return [Part(kind, "x", [kind], call_id="tool:t1" if kind in ("call", "result") else "") for kind in kinds]


def facts(role: Role, *of: Part) -> Facts:
    return facts_of(role, of, 0)


# --- the kind -------------------------------------------------------------------------------------------------

KINDS: list[tuple[Role, tuple[PartKind, ...], MessageKind]] = [
    ("user", (), "typed"),
    ("user", ("text",), "typed"),
    ("user", ("command",), "typed"),
    ("user", ("media",), "typed"),
    ("user", ("opaque",), "typed"),
    ("user", ("reminder", "text"), "typed"),
    ("user", ("notice", "text"), "typed"),
    ("user", ("blank",), "notice"),
    ("user", ("reminder",), "notice"),
    ("user", ("notice", "reminder"), "notice"),
    ("user", ("recap",), "recap"),
    ("user", ("recap", "text"), "recap"),
    ("user", ("summarise",), "summarise"),
    ("user", ("text", "summarise"), "summarise"),
    ("user", ("result", "summarise"), "summarise"),
    ("user", ("result",), "result"),
    ("user", ("result", "reminder"), "result"),
    ("user", ("result", "notice"), "result"),
    ("user", ("result", "text"), "mixed"),
    ("user", ("result", "media"), "mixed"),
    ("tool", ("result",), "result"),
    ("tool", ("result", "text"), "mixed"),
    ("user", ("thinking",), "reasoning"),
    ("assistant", (), "reply"),
    ("assistant", ("text",), "reply"),
    ("assistant", ("blank",), "reply"),
    ("assistant", ("thinking",), "reasoning"),
    ("assistant", ("thinking", "thinking"), "reasoning"),
    ("assistant", ("thinking", "text"), "reply"),
    ("assistant", ("text", "call"), "call"),
    ("assistant", ("server",), "call"),
    ("user", ("server",), "notice"),
    ("assistant", ("result",), "reply"),
    ("assistant", ("compaction",), "compaction"),
    ("assistant", ("compaction", "call"), "compaction"),
    ("system", ("compaction",), "compaction"),
    ("system", ("text",), "system"),
    ("system", ("call",), "system"),
    ("system", (), "system"),
    ("unknown", ("text",), "unknown"),
    ("unknown", (), "unknown"),
    ("unknown", ("call",), "call"),
    ("tool", (), "unknown"),
]


@pytest.mark.parametrize(("role", "kinds", "kind"), KINDS)
def test_a_message_is_what_the_first_rule_says(role: Role, kinds: tuple[PartKind, ...], kind: MessageKind) -> None:
    assert facts(role, *parts(*kinds)).kind == kind


def test_each_kind_of_message_has_a_row() -> None:
    assert {kind for _, _, kind in KINDS} | {"relayed"} == set(get_args(MessageKind))


@pytest.mark.parametrize(("role", "kind"), [("system", "relayed"), ("user", "typed"), ("assistant", "reply")])
def test_only_a_system_message_relays_what_a_person_said(role: Role, kind: MessageKind) -> None:
    assert facts(role, INTERJECTION).kind == kind
    assert facts(role, Part("text", "Be brief."), INTERJECTION).kind == kind


@pytest.mark.parametrize(("kind", "is_text"), [("text", True), ("notice", False), ("blank", False), ("call", False)])
def test_what_a_client_wrote_is_no_text(kind: PartKind, is_text: bool) -> None:
    assert facts("user", *parts(kind)).has_text is is_text
    assert not facts("user", Part("text", " \n")).has_text


def test_thinking_is_told_from_thinking_at_the_start() -> None:
    first, later, none = (
        facts("assistant", *parts(*kinds)) for kinds in (("thinking", "text"), ("text", "thinking"), ())
    )
    assert (first.starts_with_thinking, first.has_thinking) == (True, True)
    assert (later.starts_with_thinking, later.has_thinking) == (False, True)
    assert (none.starts_with_thinking, none.has_thinking) == (False, False)


# --- a trim that a person asks for ----------------------------------------------------------------------------

COMMANDS: list[tuple[Role, list[Part], bool]] = [
    ("user", [Part("text", "/smart-compact")], True),
    ("user", [Part("text", "\n /smart-compact keep the tests")], True),
    ("user", [Part("reminder", "x"), Part("text", "/smart-compact")], True),
    ("user", [Part("command", "<command-name>/smart-compact</command-name>")], True),
    ("user", [Part("text", "Why?"), Part("command", "x")], True),
    ("user", [Part("text", "/smart-compaction")], False),
    ("user", [Part("text", "Use /smart-compact")], False),
    ("user", [Part("text", "Why?"), Part("text", "/smart-compact")], False),
    ("user", [Part("notice", "/smart-compact")], False),
    ("assistant", [Part("text", "/smart-compact")], False),
    ("system", [Part("command", "x")], False),
    ("tool", [Part("result", "/smart-compact")], False),
]


@pytest.mark.parametrize(("role", "of", "forces"), COMMANDS)
def test_a_person_asks_for_a_trim_at_the_start_of_a_message(role: Role, of: list[Part], forces: bool) -> None:
    assert facts(role, *of).forces_trim is forces


# --- sizes ----------------------------------------------------------------------------------------------------

SIZES: list[tuple[Part, Sizes]] = [
    (Part("text", "two words"), measure("text", "two words")),
    (Part("call", "Read\npath: a.py"), measure("args", "Read\npath: a.py")),
    (Part("result", "ok"), measure("result", "ok")),
    (Part("result", ""), ZERO),
    (Part("blank", ""), ZERO),
    (Part("thinking", "Hm."), tokens.thinking("Hm.")),
    (Part("thinking", "Hm.", signature="x" * 5_000), tokens.thinking("Hm.", 5_000)),
    (Part("thinking", "", signature="x" * 5_000), tokens.opaque(5_000)),
    (Part("compaction", "x" * 5_000), tokens.opaque(5_000)),
    (Part("media", media=("image",)), tokens.media("image")),
    (Part("media", "Plan", media=("document",)), measure("text", "Plan") + tokens.media("document")),
    (
        Part("result", "ok", media=("image", "document")),
        measure("result", "ok") + tokens.media("image") + tokens.media("document"),
    ),
]


@pytest.mark.parametrize(("part", "sizes"), SIZES)
def test_a_part_is_counted_as_what_it_is(part: Part, sizes: Sizes) -> None:
    assert sizes_of([part]) == sizes


def test_the_parts_of_a_message_add_up() -> None:
    assert sizes_of(part for part, _ in SIZES) == sum((sizes for _, sizes in SIZES), ZERO)
    assert sizes_of([]) == ZERO


# --- the cache ------------------------------------------------------------------------------------------------


def test_a_message_with_the_same_bytes_has_the_very_same_facts() -> None:
    cache = HistoryCache()
    first = cached_facts(anthropic, {"role": "user", "content": "hi"}, cache)
    assert cached_facts(anthropic, {"role": "user", "content": "hi"}, cache) is first
    assert cached_facts(anthropic, {"content": "hi", "role": "user"}, cache) is not first
    assert first.bytes == len('{"role":"user","content":"hi"}')


def test_another_message_under_the_same_hash_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmem_hook.facts.hash", lambda payload: 1, raising=False)
    cache = HistoryCache()
    cached_facts(anthropic, {"role": "user", "content": "hi"}, cache)
    assert cached_facts(anthropic, {"role": "assistant", "content": "hello"}, cache).role == "assistant"
