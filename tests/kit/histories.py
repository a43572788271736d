"""Hypothesis strategies for bodies that the strict providers accept, and what happens to them over time.

    @given(bodies("anthropic"), randoms())
    def test_…(body, rng):
        for request in growth(body): ...
        other = drift(body, rng)

`talks()` draws the plan without a format, for tests that want the same conversation in all three.
"""

from __future__ import annotations

from hypothesis import strategies as st

from .builders import Format, Json
from .shapes import Step, Talk, Turn, render
from .variations import drift, edit, fork, format_of, growth, rewind, turns_of

__all__ = [
    "bodies", "drift", "edit", "fork", "format_of", "growth", "randoms", "render", "rewind", "talks", "turns_of",
]  # fmt: skip

RESULTS = ("text", "text", "text", "blocks", "empty", "error", "image", "reference", "custom")
TYPED = ("text", "text", "blocks", "image", "document", "reminder", "repeat")

randoms = st.randoms


def steps() -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4).map(tuple),
        lead=st.booleans(),
        thinks=st.booleans(),
        search=st.booleans(),
        mixed=st.sampled_from((False, False, False, True)),
        system=st.sampled_from((False, False, True)),
        reordered=st.booleans(),
    )


def turns(most_steps: int, *, closes: st.SearchStrategy[bool]) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        typed=st.sampled_from(TYPED),
        steps=st.lists(steps(), max_size=most_steps).map(tuple),
        notice=st.sampled_from((False, False, True)),
        redacts=st.sampled_from((False, False, True)),
        closes=closes,
    )


@st.composite
def talks(draw: st.DrawFn, *, most_turns: int = 5, most_steps: int = 6, size: int = 40) -> Talk:
    """A conversation of up to `most_turns` closed turns and one that still runs; `size` in characters a text."""
    closed = draw(st.lists(turns(most_steps, closes=st.just(True)), max_size=most_turns - 1))
    running = draw(turns(most_steps, closes=st.just(False)))
    return Talk(
        turns=(*closed, running),
        thinking=draw(st.sampled_from(("", "adaptive", "enabled"))),
        marks=draw(st.integers(min_value=0, max_value=4)),
        size=size,
        seed=draw(st.integers(min_value=0, max_value=999)),
        developer=draw(st.booleans()),
    )


def bodies(fmt: Format, *, most_turns: int = 5, most_steps: int = 6, size: int = 40) -> st.SearchStrategy[Json]:
    """Bodies of one format; raise `size` to make them heavy enough for a trimmer to act."""
    return talks(most_turns=most_turns, most_steps=most_steps, size=size).map(lambda talk: render(talk, fmt))
