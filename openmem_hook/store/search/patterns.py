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
"""Characters."""
PLACE_S = 0.05
"""Seconds for showing a long line around its match."""
_LEADING_FLAGS = regex.compile(r"\(\?([aimsu]+)\)")
_PAST_A_LINE = regex.compile(
    r"\\[AZzGKRX]|\(\?(?!:|P<|P=|<[A-Za-z_])|\(\*|[*+?}]\+|(?<!\\)\{[0-9<= ]*[ides][ides0-9<=+,: a-z\[\]-]*\}"
)
"""What may make a match depend on other lines: anchors of the text, look-around, atomic and possessive parts, flags
in the middle, verbs, fuzzy matching."""
_UNREADABLE = regex.compile(r"\\[pPNxuULgo0-9]|\(\?[P<]")
_QUANTIFIER = regex.compile(r"\{[0-9]*,?[0-9]*\}")
_LITERAL = regex.compile(r"[A-Za-z0-9_ =/,:;@#%&<>'\"!~`-]")
_LITERAL_BEHIND_BACKSLASH = ".-/[]{}()*+?|^$\\\"'#&~@=:,;!%<> "
SHORTEST_LITERAL = 3


class PatternError(ValueError):
    """The pattern can't be used; says why in a few words."""


class OutOfTimeError(Exception):
    """The search took too long; the matches until then stand."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression that was sent by an agent, ready to be searched for."""

    expression: regex.Pattern[str]
    by_line: bool
    """Whether a match may depend on other lines, so that each line has to be searched by itself."""
    literal: str
    """A text that stands in every line that matches, in whatever case; "" for unknown."""

    def lines_in(self, text: str, until: float) -> Iterator[int]:
        """Offsets at which matching lines of the text begin. Raises OutOfTimeError after `until` (monotonic)."""
        start = 0
        if self.by_line:
            for line in text.split("\n"):
                if self.matches(line, until):
                    yield start
                start += len(line) + 1
            return
        while start <= len(text) and (match := self._search(text, start, len(text), until)) is not None:
            begin = text.rfind("\n", start, match.start()) + 1 or start
            end = text.find("\n", match.start())
            end = len(text) if end < 0 else end
            # A match that begins in a line and ends beyond it says nothing yet: then the line is searched by itself.
            if match.end() <= end or self._search(text, begin, end, until) is not None:
                yield begin
            start = end + 1

    def matches(self, line: str, until: float) -> bool:
        """Whether a line matches. Raises OutOfTimeError after `until` (monotonic)."""
        return self._search(line, 0, len(line), until) is not None

    def place_in(self, line: str) -> int:
        """Where in a line that matches the match is; 0 where that takes too long to find again."""
        try:
            match = self._search(line, 0, len(line), time.monotonic() + PLACE_S)
        except OutOfTimeError:
            return 0
        return 0 if match is None else match.start()

    def _search(self, text: str, start: int, end: int, until: float) -> regex.Match[str] | None:
        rest = until - time.monotonic()
        if rest <= 0:
            raise OutOfTimeError
        try:
            return self.expression.search(text, start, end, concurrent=True, timeout=rest)
        except TimeoutError:
            raise OutOfTimeError from None


def compile_pattern(source: str) -> Pattern:
    """Raises PatternError."""
    if len(source) > LONGEST_PATTERN:
        raise PatternError(f"it has {len(source)} characters, {LONGEST_PATTERN} are allowed")
    try:
        expression = regex.compile(source, regex.MULTILINE, cache_pattern=False)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise PatternError(str(error) or type(error).__name__) from None
    if expression.flags & regex.REVERSE:
        raise PatternError("reverse matching is not supported here")
    flags = _LEADING_FLAGS.match(source)
    rest = source if flags is None else source[flags.end() :]
    by_line = _PAST_A_LINE.search(rest) is not None or bool(expression.flags & (regex.VERBOSE | regex.VERSION1))
    # Only a pattern that is simple enough to be read here says what all of its matches hold.
    literal = "" if by_line or _UNREADABLE.search(rest) else _literal(rest, bool(expression.flags & regex.IGNORECASE))
    return Pattern(expression, by_line, literal)


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
        char, end, literal = source[at], at + 1, ""
        if char == "\\":  # two signs
            following = source[end : end + 1]
            literal = following if following in _LITERAL_BEHIND_BACKSLASH else ""
            end += 1
        elif char == "[":  # a set; a bracket that closes right behind its beginning belongs to it
            end += source[end : end + 1] == "^"
            end += source[end : end + 1] == "]"
            while end < len(source) and source[end] != "]":
                end += 2 if source[end] == "\\" else 1
            end += 1
        elif char == "{" and (times := _QUANTIFIER.match(source, at)):
            end = times.end()
        elif (char == "|" and not depth) or _LITERAL.fullmatch(char):
            literal = char
        depth += {"(": 1, ")": -1}.get(char, 0)
        yield "" if depth else literal, source[end : end + 1]
        at = end
