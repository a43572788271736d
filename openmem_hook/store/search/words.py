"""A query in words: what it asks for, as full-text search and as a search of our own over plain text.

A query is pieces: words, "phrases", prefixes*. A line matches when it has every piece, upper and lower case and
accents aside. A word counts as a whole word. A piece that holds more than letters and digits (`retry-after`,
`--force`, `"not found"`) must stand there just so, except for what prose puts around words. Where a script runs
on without spaces (Chinese, Japanese, Korean, Thai, …) any part of a run counts, and a change of script ends a
word. Punctuation alone counts only where nothing else is asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import regex

from openmem_hook.text import searchable

MOST_PIECES = 32
LONGEST_PIECE = 1_000
"""Characters; what is pasted beyond either limit is not looked for, and the answer says so."""

_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Han, Kana, Hangul, wide and narrow forms. A whole run of them is one token to the
full-text index, so texts with any of them are searched here."""
_RUNS = regex.compile(f"[{_UNSPACED}]")
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{Co}\p{M}]+")
_PROSE = ".,;:!?()[]{}<>'`“”‘’«»…"
"""What people put around a word without meaning it."""
_MARKS = regex.compile("[\u0300-\u036f]")
_ACCENTED = regex.compile("[\u00c0-\u024f\u0300-\u036f\u0370-\u052f\u1e00-\u1fff]")
_WIDE = regex.compile("[\uff00-\uffef]+")
_PATH = regex.compile(r"[^\s/\\]*[/\\][^\n]*|[^\s/\\]+\.[A-Za-z]\w{0,7}")
_PIECES = regex.compile(r'"([^"]*)"|([^\s"]+)')


def runs_on(text: str) -> bool:
    """True where the full-text index can't be trusted with this text: part of it is written without spaces."""
    return not text.isascii() and _RUNS.search(text) is not None


def fold(text: str) -> str:
    """Text as it is compared: without case, accents and widths. Line breaks stay where they are."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text)
    if _ACCENTED.search(text):
        text = unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text)))
    return text.casefold()


@dataclass(frozen=True)
class Piece:
    """One thing asked for. `tokens` are its words as the full-text index has them, none for bare punctuation."""

    text: str
    tokens: tuple[str, ...]
    prefix: bool = False

    @property
    def verbatim(self) -> bool:
        """The full-text index finds its words next to each other; what stands around them is still to be seen."""
        return self.tokens != (self.text,)

    @property
    def runs_on(self) -> bool:
        return runs_on(self.text)

    @property
    def expression(self) -> str:
        quoted = self.text.replace('"', '""')
        return f'"{quoted}" *' if self.prefix else f'"{quoted}"'

    @cached_property
    def folded(self) -> str:
        return fold(self.text)

    @cached_property
    def _ends(self) -> tuple[bool, bool]:
        """Whether a word begins and ends where the piece does, so that no other letter may stand beside it."""
        if self.runs_on or not self.tokens:
            return False, False
        return self.text.startswith(self.tokens[0]), self.text.endswith(self.tokens[-1]) and not self.prefix

    def find(self, folded: str) -> int:
        """Where the piece stands in folded text, -1 for nowhere."""
        begins, ends = self._ends
        at = folded.find(self.folded)
        while at >= 0:
            end = at + len(self.folded)
            if not (begins and at and _goes_on(folded[at - 1])) and not (ends and _goes_on(folded[end : end + 1])):
                return at
            at = folded.find(self.folded, at + 1)
        return -1


def _goes_on(char: str) -> bool:
    """Whether a word that stands beside this sign would be part of a longer one."""
    return char.isalnum() and not _RUNS.match(char)


@dataclass(frozen=True)
class Query:
    pieces: tuple[Piece, ...]
    cut: bool = False
    bare: bool = False
    """Only punctuation, symbols or emoji: found as they are."""

    @property
    def runs_on(self) -> bool:
        return any(piece.runs_on for piece in self.pieces)

    @property
    def is_path(self) -> bool:
        """Whether it names one file: `src/app.py`, `app.py`."""
        return len(self.pieces) == 1 and _PATH.fullmatch(self.pieces[0].text) is not None

    @property
    def verbatim(self) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if piece.verbatim)

    def expression(self, joiner: str = "AND") -> str:
        return f" {joiner} ".join(piece.expression for piece in self.pieces)

    def loosened(self) -> str:
        """The same query with what is between words left open."""
        return " ".join(token for piece in self.pieces for token in piece.tokens)

    def in_all(self, folded: str) -> bool:
        return all(piece.find(folded) >= 0 for piece in self.pieces)

    def count_in(self, folded: str) -> int:
        return sum(piece.find(folded) >= 0 for piece in self.pieces)

    def place_in(self, folded: str) -> int:
        """Where the first piece that is there stands, 0 for none."""
        return max(0, min((at for piece in self.pieces if (at := piece.find(folded)) >= 0), default=0))


def parse(text: str) -> Query:
    """The query in a text; without pieces where there is nothing to look for. Never raises."""
    words: list[Piece] = []
    marks: list[Piece] = []
    cut = False
    text = _WIDE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), searchable(text))
    for phrase, word in _PIECES.findall(text):
        said = phrase.strip() or word.strip(_PROSE) or word
        cut = cut or len(said) > LONGEST_PIECE
        piece = _piece(said[:LONGEST_PIECE], loose=not phrase)
        (words if piece.tokens else marks).append(piece)
    found = list(dict.fromkeys(words or [piece for piece in marks if piece.text]))
    return Query(tuple(found[:MOST_PIECES]), cut or len(found) > MOST_PIECES, not words)


def _piece(said: str, loose: bool) -> Piece:
    tokens = tuple(_TOKEN.findall(said))
    prefix = loose and bool(tokens) and said.endswith("*")
    return Piece(said.rstrip("*") if prefix else said, tokens, prefix)


def lines_with(query: Query, folded_lines: Sequence[str]) -> list[int]:
    """Numbers, from 0, of the lines that match."""
    return [at for at, line in enumerate(folded_lines) if query.in_all(line)]


def best_lines(query: Query, lines: Iterable[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """Where no line has all pieces: those that together show as many as possible."""
    counted = [(sum(p.find(f) >= 0 for p in query.pieces), number, text, f) for number, text, f in _folded(lines)]
    missing, chosen = set(query.pieces), []
    for count, number, text, folded in sorted(counted, key=lambda item: (-item[0], item[1])):
        new = {piece for piece in missing if piece.find(folded) >= 0}
        if count and new:
            chosen.append((number, text))
            missing -= new
        if len(chosen) == most:
            break
    return sorted(chosen)


def _folded(lines: Iterable[tuple[int, str]]) -> Iterable[tuple[int, str, str]]:
    return ((number, text, fold(text)) for number, text in lines)
