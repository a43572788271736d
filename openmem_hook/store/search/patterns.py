"""A regular expression over stored lines, as if every line were searched by itself, within a time and without
holding the interpreter.

`regex` lets go of the interpreter's lock while it matches (`concurrent`) and gives up after a time; Python's own
`re` does neither. A pattern that can't look past a line is run over a whole message at once, which is several
times faster; any other is run line by line. Text that the pattern can't do without is looked for by SQLite first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import regex

LONGEST_PATTERN = 2_000
_LEADING_FLAGS = regex.compile(r"\(\?([aimsu]+)\)")
_PAST_A_LINE = regex.compile(
    r"\\[AZzGKRX]|\(\?(?!:|P<|P=|<[A-Za-z_])|\(\*|[*+?}]\+|(?<!\\)\{[0-9<= ]*[ides][ides0-9<=+,: a-z\[\]-]*\}"
)
"""What may make a match depend on other lines: anchors of the text, look-around, atomic and possessive parts, flags
in the middle, verbs, fuzzy matching."""
_UNREAD = regex.compile(r"\\[pPNxuULgo0-9]|\(\?[P<]")
_QUANTIFIER = regex.compile(r"\{[0-9]*,?[0-9]*\}")
_LITERAL = regex.compile(r"[A-Za-z0-9_ =/,:;@#%&<>'\"!~`-]")
_ESCAPED_LITERAL = ".-/[]{}()*+?|^$\\\"'#&~@=:,;!%<> "
SHORTEST_LITERAL = 3


class PatternError(ValueError):
    """The pattern can't be used; says why in a few words."""


class OutOfTimeError(Exception):
    """The pattern took too long; what was found until then stands."""


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern. `literal` stands in every line that matches, in whatever case; "" for unknown."""

    source: str
    compiled: regex.Pattern[str]
    by_line: bool
    literal: str

    def lines_in(self, text: str, until: float) -> Iterator[int]:
        """Offsets at which matching lines of the text begin. Raises OutOfTimeError after `until` (monotonic)."""
        yield from self._each_line(text, until) if self.by_line else self._at_once(text, until)

    def _each_line(self, text: str, until: float) -> Iterator[int]:
        start = 0
        for line in text.split("\n"):
            if self._search(line, 0, len(line), until) is not None:
                yield start
            start += len(line) + 1

    def _at_once(self, text: str, until: float) -> Iterator[int]:
        """A match that begins in a line and ends beyond it says nothing yet: then the line is searched by itself."""
        start = 0
        while start <= len(text) and (found := self._search(text, start, len(text), until)) is not None:
            begin = text.rfind("\n", start, found.start()) + 1 or start
            end = text.find("\n", found.start())
            end = len(text) if end < 0 else end
            if found.end() <= end or self._search(text, begin, end, until) is not None:
                yield begin
            start = end + 1

    def matches(self, line: str, until: float) -> bool:
        return self._search(line, 0, len(line), until) is not None

    def place_in(self, line: str) -> int:
        """Where in a line that matches the match is; 0 where that takes too long to find again."""
        try:
            found = self._search(line, 0, len(line), time.monotonic() + 0.05)
        except OutOfTimeError:
            return 0
        return 0 if found is None else found.start()

    def _search(self, text: str, start: int, end: int, until: float) -> regex.Match[str] | None:
        left = until - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        try:
            return self.compiled.search(text, start, end, concurrent=True, timeout=left)
        except TimeoutError:
            raise OutOfTimeError from None


def compiled(source: str) -> Pattern:
    """Raises PatternError."""
    if len(source) > LONGEST_PATTERN:
        raise PatternError(f"it has {len(source)} characters, {LONGEST_PATTERN} are allowed")
    try:
        found = regex.compile(source, regex.MULTILINE, cache_pattern=False)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise PatternError(str(error) or type(error).__name__) from None
    if found.flags & regex.REVERSE:
        raise PatternError("reverse matching is not supported here")
    flags = _LEADING_FLAGS.match(source)
    rest = source if flags is None else source[flags.end() :]
    by_line = _PAST_A_LINE.search(rest) is not None or bool(found.flags & (regex.VERBOSE | regex.VERSION1))
    literal = "" if by_line or _UNREAD.search(rest) else _literal(rest, bool(found.flags & regex.IGNORECASE))
    return Pattern(source, found, by_line, literal)


def _literal(source: str, any_case: bool) -> str:
    """The longest text that every match contains, by the simplest reading of the pattern; "" where unsure. Without
    regard to case, two letters have forms beyond ASCII (long s, kelvin) and are left out."""
    runs = [""]
    for literal, following in _units(source):
        if literal == "|":
            return ""
        if not literal or following in ("?", "*", "{") or (any_case and literal in "skSK"):
            runs.append("")
            continue
        runs[-1] += literal
        if following == "+":
            runs.append("")
    longest = max(runs, key=len)
    return longest if len(longest) >= SHORTEST_LITERAL else ""


def _units(source: str) -> Iterator[tuple[str, str]]:
    """What the pattern is made of outside of groups, each with the sign after it: a literal sign, "|" for a choice
    between whole patterns, "" for anything else."""
    at = depth = 0
    while at < len(source):
        literal, end = _unit(source, at)
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if not depth and source[at] == "|":
            literal = "|"
        yield "" if depth else literal, source[end : end + 1]
        at = end


def _unit(source: str, at: int) -> tuple[str, int]:
    """The literal sign that stands here, "" for none, and where the next unit begins."""
    char, end = source[at], at + 1
    if char == "\\":
        following = source[end : end + 1]
        return (following if following in _ESCAPED_LITERAL else ""), end + 1
    if char == "[":
        return "", _set_end(source, end)
    if char == "{" and (times := _QUANTIFIER.match(source, at)):
        return "", int(times.end())
    return (char if _LITERAL.fullmatch(char) else ""), end


def _set_end(source: str, at: int) -> int:
    """Behind the set that begins before `at`."""
    at += source[at : at + 1] == "^"
    at += source[at : at + 1] == "]"
    while at < len(source) and source[at] != "]":
        at += 2 if source[at] == "\\" else 1
    return at + 1
