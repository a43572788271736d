"""Decoding with a memory: what was remembered of earlier requests never shows in how a later one is named."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from openmem_hook.formats import adapter_named
from openmem_hook.formats.decode import decode
from openmem_hook.model import History, HistoryCache
from tests.kit.builders import FORMATS, Format, Json, assistant, body, session, user
from tests.kit.histories import bodies, drift, edit, growth, rewind


def named(fmt: Format, request: Json, memo: HistoryCache) -> History:
    adapter = adapter_named(fmt)
    assert adapter is not None
    return decode(adapter, request, memo)


def alike(one: History, other: History) -> bool:
    return (one.keys, one.chain, one.facts) == (other.keys, other.chain, other.facts)


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_history_has_the_same_names_whatever_was_decoded_before(data: st.DataObject, rng: Random) -> None:
    fmt = data.draw(st.sampled_from(FORMATS))
    base = data.draw(bodies(fmt))
    requests = [*growth(base), drift(base, rng), edit(base, 0), rewind(base)]
    rng.shuffle(requests)
    memo = HistoryCache()
    for request in requests:
        assert alike(named(fmt, request, memo), named(fmt, request, HistoryCache()))


def test_a_message_seen_before_is_not_looked_at_again() -> None:
    memo = HistoryCache()
    first = named("anthropic", session("anthropic", exchanges=3), memo)
    again = named("anthropic", session("anthropic", exchanges=4), memo)
    shared = len(first) - 1  # the last one of the longer history differs
    assert all(a is b for a, b in zip(first.facts[:shared], again.facts, strict=False))


def test_names_are_those_of_the_new_history_from_where_it_differs() -> None:
    memo = HistoryCache()
    one = named("anthropic", body(user("a"), assistant("b"), user("c")), memo)
    other = named("anthropic", body(user("a"), assistant("x"), user("c")), memo)
    assert one.keys[0] == other.keys[0]
    assert set(one.keys[1:]).isdisjoint(other.keys[1:])
