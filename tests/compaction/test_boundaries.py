"""Where calls wait for their answers: the fast way says what the definition says."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.compaction.boundaries import closed_places

ids = st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)


def by_definition(facts: Sequence[Any]) -> list[bool]:
    """No call made before the place is answered at or after it; an answer belongs to the newest open call."""
    pairs, waiting = [], []
    for at, fact in enumerate(facts):
        waiting += [(call, at) for call in fact.calls]
        for answer in fact.answers:
            made = next((pair for pair in reversed(waiting) if pair[0] == answer), None)
            if made is not None:
                waiting.reverse()
                waiting.remove(made)
                waiting.reverse()
                pairs.append((made[1], at))
    return [not any(made < place <= answered for made, answered in pairs) for place in range(len(facts) + 1)]


@given(st.lists(st.builds(SimpleNamespace, calls=ids, answers=ids), max_size=12))
def test_a_place_is_closed_where_no_call_before_it_is_answered_after_it(facts: list[Any]) -> None:
    assert closed_places(facts) == by_definition(facts)
