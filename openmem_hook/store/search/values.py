"""What a search is asked for and what it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LINES_SHOWN = 3
"""Matching lines kept of a message."""

_NOT_OUR_OWN = (
    "(instr(r.tool_name, 'smart_compact_') = 0 "
    "OR (length(r.tool_name) - length(replace(r.tool_name, ', ', ''))) / 2 + 1 "
    "> (length(r.tool_name) - length(replace(r.tool_name, 'smart_compact_', ''))) / 14)"
)
"""Calls of the search tools and their answers are stored too. If searches showed them, they would be counted again; so
a message counts only where some other tool has part in it: it names more tools than tools of ours (14 characters is
the length of the prefix)."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which messages count. Those of the search tools themselves never do."""

    roles: tuple[str, ...] = ()
    """Roles that count; empty for all of them."""
    in_context: bool | None = None
    """Whether the agent can still see them; None for both."""
    since: float | None = None
    """Seconds since 1970, included."""
    until: float | None = None
    """Seconds since 1970, included."""

    def condition(self) -> tuple[str, list[Any]]:
        """A condition in SQL on `r`, a row of `records`, and its positional parameters."""
        terms, parameters = [_NOT_OUR_OWN], list[Any]()
        if self.roles:
            terms.append(f"r.role IN ({','.join('?' * len(self.roles))})")
            parameters += self.roles
        if self.in_context is not None:
            terms.append("r.in_context = ?")
            parameters.append(int(self.in_context))
        for comparison, bound in ((">=", self.since), ("<=", self.until)):
            if bound is not None:
                terms.append(f"r.created_at {comparison} ?")
                parameters.append(bound)
        return " AND ".join(terms), parameters


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message without its text."""

    seq: int
    """Number of the message in its session, from 1."""
    role: str
    """user, assistant, tool or system."""
    kind: str
    """typed, reply, call, result, ..."""
    tool_name: str
    """Tools called or answered, comma separated; "" for none."""
    in_context: bool
    """Whether its thread's newest request shows it whole."""
    thread: str
    """Name of the line of history that it belongs to."""
    created_at: float
    """Seconds since 1970."""
    result_id: str = ""
    """16 hex characters where its result was shortened, else ""."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a session matches: a message, and which of its lines to show."""

    seq: int
    score: float
    """The higher the better; 0.0 where matches are not ranked."""
    lines: tuple[int, ...] | None = None
    """Ids of the first matching lines, or of those that show most of it where no line matches alone; None where the
    index is still to be asked."""
    matching: int = 0
    """How many lines of the message match."""


@dataclass(frozen=True, slots=True)
class Match:
    """A matching message as it is shown."""

    message: Message
    lines: Sequence[tuple[int, str]]
    """Number, from 1, and text of the lines to show."""
    matching: int
    """How many lines of the message match; 0 where the lines shown hold parts of the query only."""


@dataclass(slots=True)
class Matches:
    """What matches in one session."""

    total: int = 0
    """How many messages match."""
    line_matches: int = 0
    """How many lines match."""
    locations: list[Location] = field(default_factory=list)
    """The best first, at most as many as were asked for."""
    is_complete: bool = True
    """False where the time ended the search: then the counts are lower bounds."""
