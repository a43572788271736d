"""Hypothesis strategies for sketches: legal histories of two styles, as lines that read well in a failure.

`messages` is how the Messages API and chat have it: an output is one message, system messages stand before an output.
`items` is how the Responses API has it: an output is a run of items, with reasoning, tools of the provider, items that
nobody knows, its compaction, and words that come between a call and its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from openmem_hook.model import History
from tests.compaction.sketches import history

Style = Literal["messages", "items"]
TOOL = "F"
"""The one deferred tool of these histories."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A generated history; its repr is what a failure shows."""

    line: str
    style: Style
    must_think: bool = False

    def history(self) -> History:
        return history(self.line, deferred_tools=TOOL, must_think=self.must_think)


@dataclass(slots=True)
class _Writer:
    """A line in the making."""

    tokens: list[str]
    must_think: bool
    count: int = 0
    is_turn_open: bool = False
    """Whether an output since the last words that begin a turn has thought."""

    def label(self) -> int:
        self.count += 1
        return self.count

    def say(self, letter: str, modifiers: str = "") -> None:
        self.tokens.append(f"{letter}{self.label()}{modifiers}")
        self.is_turn_open = self.is_turn_open and letter not in "TN"

    def thinking(self, is_wanted: bool) -> str:
        """The modifier of an output: the first one of a turn thinks wherever the provider asks for it."""
        has_thinking = is_wanted or (self.must_think and not self.is_turn_open)
        self.is_turn_open = True
        return ":think" if has_thinking else ""


@st.composite
def sketches(draw: st.DrawFn, *, most_turns: int = 4, most_steps: int = 6) -> Sketch:
    """A history that a provider would accept, which ends where a client has to send."""
    style: Style = draw(st.sampled_from(("messages", "items")))
    must_think = style == "messages" and draw(st.booleans())
    writer = _Writer([], must_think)
    turns = draw(st.integers(1, most_turns))
    for turn in range(turns):
        writer.say("T")
        if draw(_rarely):
            writer.say("N", draw(st.sampled_from(("", ":unnamed"))))
        for _ in range(draw(st.integers(0, most_steps))):
            (_exchange if style == "messages" else _items)(draw, writer)
        if turn < turns - 1:
            writer.say("A", writer.thinking(draw(st.booleans())))
    return Sketch(" ".join(writer.tokens), style, must_think)


_rarely = st.sampled_from((False, False, False, True))
_ids = st.integers(1, 2)


def _exchange(draw: st.DrawFn, writer: _Writer) -> None:
    if draw(_rarely):
        writer.say(draw(st.sampled_from("SW")))
    calls = [str(writer.label()) for _ in range(draw(_ids))]
    tool, signature = f":tool={TOOL}" * draw(_rarely), ":signed" * draw(_rarely)
    writer.tokens.append(f"C{','.join(calls)}{writer.thinking(draw(st.booleans()))}{tool}{signature}")
    writer.tokens.append(f"{draw(st.sampled_from('RRRM'))}{','.join(calls)}{f':refs={TOOL}' * draw(_rarely)}")
    if draw(_rarely):
        writer.say("N")


def _items(draw: st.DrawFn, writer: _Writer) -> None:
    if draw(_rarely):
        writer.say(draw(st.sampled_from("SWPUN")))
    for letter in ("K", "V", "A"):
        if draw(_rarely):
            writer.say(letter, ":signed" * (letter == "V"))
    calls = [str(writer.label()) for _ in range(draw(_ids))]
    writer.tokens += [f"C{call}{f':tool={TOOL}' * draw(_rarely)}" for call in calls]
    if draw(_rarely):
        writer.say(draw(st.sampled_from("TS")))
    writer.tokens += [f"R{call}{f':refs={TOOL}' * draw(_rarely)}" for call in draw(st.permutations(calls))]
