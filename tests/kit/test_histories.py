"""Generated histories: valid as they are, at every step of their growth, and after every harmless drift."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openmem_hook.replay.provider.breakpoints import breakpoints
from tests.kit.builders import FORMATS, Format, body, chat, responses, session, user
from tests.kit.histories import bodies, drift, edit, fork, format_of, growth, randoms, rewind, talks, turns_of
from tests.kit.prefix import blocks, broken_at, canonical, check, unchanged
from tests.kit.shapes import Step, Talk, Turn, render

PROFILE = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EVERY = pytest.mark.parametrize("fmt", FORMATS)


@EVERY
def test_generated_bodies_are_accepted_at_every_step_of_their_growth(fmt: Format) -> None:
    @PROFILE
    @given(bodies(fmt))
    def holds(whole: dict[str, Any]) -> None:
        assert format_of(whole) == fmt
        requests = growth(whole)
        for request in requests:
            assert check(request, fmt) == []
        assert canonical(requests[-1]) == canonical(whole)
        for earlier, later in pairwise(requests):
            assert broken_at(earlier, later, fmt) is None

    holds()


@EVERY
def test_drift_is_accepted_and_keeps_the_words(fmt: Format) -> None:
    @PROFILE
    @given(bodies(fmt), randoms())
    def holds(whole: dict[str, Any], rng: Random) -> None:
        with unchanged(whole):
            other = drift(whole, rng)
        assert check(other, fmt) == []
        assert len(breakpoints(other)) <= len(breakpoints(whole))
        assert _words(other) == _words(whole)

    holds()


@EVERY
def test_rewind_fork_and_edit_are_accepted_and_do_break_the_prefix(fmt: Format) -> None:
    @PROFILE
    @given(bodies(fmt), randoms())
    def holds(whole: dict[str, Any], rng: Random) -> None:
        with unchanged(whole):
            changed = [rewind(whole), fork(whole, rng), edit(whole, rng.randrange(len(turns_of(whole))))]
        for other in changed:
            assert check(other, fmt) == []
            assert broken_at(whole, other, fmt) is not None

    holds()


KINDS: dict[str, Callable[[Talk], bool]] = {
    "thinking on, a long turn": lambda t: t.thinking == "enabled" and any(len(turn.steps) > 2 for turn in t.turns),
    "parallel calls": lambda t: any(len(step.results) > 2 for step in _steps(t)),
    "a mixed message": lambda t: any(step.mixed for step in _steps(t)),
    "a system message": lambda t: any(step.system for step in _steps(t)),
    "a search after thinking": lambda t: any(step.search and step.thinks for step in _steps(t)),
    "a picture in a result": lambda t: any("image" in step.results for step in _steps(t)),
    "a reference": lambda t: any("reference" in step.results for step in _steps(t)),
    "a reminder": lambda t: any(turn.typed == "reminder" for turn in t.turns),
    "redacted thinking": lambda t: t.thinking != "" and any(turn.redacts for turn in t.turns),
    "many breakpoints": lambda t: t.marks == 4 and len(t.turns) > 2,
}


def test_the_strategy_reaches_every_kind_of_shape() -> None:
    reached: set[str] = set()

    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(talks())
    def draw(talk: Talk) -> None:
        reached.update(kind for kind, holds in KINDS.items() if holds(talk))

    draw()
    assert reached == set(KINDS)


def _steps(talk: Talk) -> list[Step]:
    return [step for turn in talk.turns for step in turn.steps]


FULL = Talk(
    turns=(
        Turn("reminder", (Step(("text", "image", "reference"), lead=True, search=True),), notice=True),
        Turn(
            "image",
            (Step(("custom", "error"), True, True, system=True, reordered=True, mixed=True), Step()),
            closes=False,
        ),
    ),
    thinking="enabled",
    marks=4,
    developer=True,
)


@EVERY
def test_one_talk_reads_the_same_in_all_formats(fmt: Format) -> None:
    made = render(FULL, fmt)
    assert check(made, fmt) == []
    assert len(turns_of(made)) == (3 if fmt != "anthropic" else 2)
    assert canonical(render(FULL, fmt)) == canonical(made)


def test_a_talk_shows_its_parts_on_the_wire() -> None:
    whole = canonical(render(FULL, "anthropic")).decode()
    kinds = ("thinking", "server_tool_use", "tool_reference", "image", "system")
    for part in (*(f'"{kind}"' for kind in kinds), '"is_error":true', "<system-reminder>", "<task-notification>"):
        assert part in whole
    flat = canonical(render(FULL, "responses")).decode()
    for part in (
        '"reasoning"',
        '"web_search_call"',
        '"custom_tool_call_output"',
        '"local_shell_call"',
        '"input_image"',
    ):
        assert part in flat


@EVERY
def test_size_makes_a_talk_heavy_without_changing_its_shape(fmt: Format) -> None:
    light, heavy = (render(Talk(FULL.turns, size=size), fmt) for size in (40, 4000))
    assert len(blocks(light, fmt)) == len(blocks(heavy, fmt))
    assert len(canonical(heavy)) > 10 * len(canonical(light))


@EVERY
@given(st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=20, deadline=None)
def test_sessions_are_accepted_and_have_the_turns_they_were_asked_for(fmt: Format, turns: int, exchanges: int) -> None:
    made = session(fmt, turns=turns + 1, exchanges=exchanges, size=300)
    assert check(made, fmt) == []
    assert len(turns_of(made)) == turns + 1
    assert len(growth(made)) == (turns + 1) * (exchanges + 1)


def test_drift_does_drift() -> None:
    whole = render(FULL, "anthropic")
    seen = {canonical(drift(whole, Random(seed))) for seed in range(20)}
    assert len(seen) > 10


def test_an_edit_changes_one_message_only() -> None:
    whole = session("chat", turns=3, exchanges=1)
    other = edit(whole, 1, "no")
    changed = [at for at, (x, y) in enumerate(zip(whole["messages"], other["messages"], strict=True)) if x != y]
    assert changed == [turns_of(whole)[1]]


@pytest.mark.parametrize(
    ("made", "fmt"),
    [
        (body(user("go")), "anthropic"),
        (chat.body(chat.user("go")), "chat"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [chat.tool("x")]}, "chat"),
        (responses.body(responses.user("go")), "responses"),
        ({"input": "go"}, "responses"),
    ],
)
def test_the_format_is_told_from_the_body(made: dict[str, Any], fmt: Format) -> None:
    assert format_of(made) == fmt


def _words(made: dict[str, Any]) -> list[str]:
    """All texts without reminders and without whitespace at their ends, in order."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            if value.strip() and not value.startswith("<system-reminder>"):
                found.append(value.strip())
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        elif isinstance(value, dict):
            for key in sorted(value):
                if key in {
                    "text",
                    "content",
                    "output",
                    "input",
                    "arguments",
                    "thinking",
                    "signature",
                    "encrypted_content",
                }:
                    walk(value[key])

    walk(made.get("input") or made.get("messages"))
    return found
