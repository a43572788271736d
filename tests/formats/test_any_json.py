"""Whatever JSON a client sends, reading and editing it never raises, and what was read of it is read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from openmem_hook import fingerprint
from openmem_hook.facts import facts_of_message
from openmem_hook.formats import ADAPTERS
from openmem_hook.formats.breakpoints import layout, markers, with_marker
from openmem_hook.formats.decode import decode
from openmem_hook.formats.typed import CLIENT_TEXTS
from openmem_hook.model import Adapter, HistoryCache, MessageKind, PartKind, Role
from openmem_hook.text import searchable_text
from tests.formats.tables import ROWS
from tests.kit.profile import examples


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Each key with its value in JSON, at any depth."""
    for key, item in value.items() if isinstance(value, dict) else ():
        yield key, item
        yield from fields_of(item)
    for item in value if isinstance(value, list) else ():
        yield from fields_of(item)


FIELDS = [field for _, _, row in ROWS for field in fields_of(row.raw)]
KEYS = sorted({key for key, _ in FIELDS})
TYPES = sorted({value for key, value in FIELDS if key == "type" and isinstance(value, str)})
"""What the tables know: a new type of block is drawn here as soon as it is there."""
ROLES = ["user", "assistant", "system", "developer", "tool", "function"]
WORDS = ["", " ", "hi", "\ud800", "a\0b\rc", "/smart-compact", '{"a": [1.0]}', *(rule.start for rule in CLIENT_TEXTS)]
MARKER = {"type": "ephemeral"}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*WORDS, *TYPES, *ROLES])
)


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that look like messages and blocks more often than chance would have it."""
    fields = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
    likely = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(TYPES) | values,
            "role": st.sampled_from(ROLES) | values,
            "cache_control": st.just(MARKER) | values,
        },
    )
    return st.builds(lambda some, more: {**some, **more}, fields, likely)


any_json = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | objects(inner), max_leaves=10)
any_object = objects(any_json)
adapters = st.sampled_from(ADAPTERS)


@given(adapter=adapters, raw=any_json | any_object)
@examples(0.5)
def test_any_message_is_read(adapter: Adapter, raw: Any) -> None:
    payload = fingerprint.dump(raw)
    parts = adapter.parts_of(raw)
    facts = facts_of_message(adapter, raw, len(payload))
    assert facts.role in get_args(Role)
    assert facts.kind in get_args(MessageKind)
    assert {part.kind for part in parts} <= set(get_args(PartKind))
    assert min(facts.sizes.counts()) >= 0
    assert searchable_text(parts).encode().decode() == searchable_text(parts)
    assert fingerprint.dump(raw) == payload, "reading changed the message"


@given(adapter=adapters, raw=any_json | any_object)
@examples(0.5)
def test_any_message_is_read_again_from_its_stored_bytes(adapter: Adapter, raw: Any) -> None:
    again = fingerprint.load(fingerprint.dump(raw))
    assert facts_of_message(adapter, again, 0) == facts_of_message(adapter, raw, 0)


@given(adapter=adapters, raw=any_object, keep_thinking=st.booleans())
@examples(0.5)
def test_any_object_is_frozen_and_pointed_at(adapter: Adapter, raw: dict[str, Any], keep_thinking: bool) -> None:
    payload = fingerprint.dump(raw)
    head_form = adapter.freeze_message(raw, keep_thinking)
    pointer_form = adapter.with_pointer(raw, "<openmem-pointer>\n</openmem-pointer>")
    assert fingerprint.dump(raw) == payload
    facts_of_message(adapter, pointer_form, 0)
    facts = facts_of_message(adapter, raw, 0)
    if head_form is not None and facts.identifies:
        assert facts_of_message(adapter, head_form, 0).digest == facts.digest


@given(adapter=adapters, messages=st.lists(any_object, min_size=1, max_size=5), fields=any_object)
@examples(0.5)
def test_any_body_that_matches_is_decoded_and_finished(
    adapter: Adapter, messages: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    body = {**fields, adapter.messages_key: messages}
    if not adapter.matches(body, is_declared=True):
        return
    payload = fingerprint.dump(body)
    history = decode(adapter, body, HistoryCache())
    assert len(history.keys) == len(history.chain) == len(history.facts) == len(messages)
    assert 0 <= history.lead <= history.editable_from <= len(messages) or history.compaction_at
    out = adapter.with_note(body, messages, "NOTE")
    assert fingerprint.dump(adapter.with_messages(body, messages)) == payload
    assert len(out[adapter.messages_key]) - len(messages) in (0, 1)
    layout(body)
    assert fingerprint.dump(body) == payload


@given(before=st.lists(any_object, max_size=5), after=st.lists(any_object, max_size=5))
@examples(0.5)
def test_any_messages_never_get_more_than_one_breakpoint_again(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    count = len(markers(after))
    out = markers(with_marker(before, after))
    assert len(out) == count or (count == 0 and out == markers(before)[-1:])
