"""A query in words: what it asks for, as full-text search and as a search of our own over plain text.

A query is pieces: words, "phrases", prefixes*. A line matches when it has every piece, upper and lower case and
accents aside. A word counts as a whole word. A piece that holds more than letters and digits (`retry-after`,
`--force`, `"not found"`) must stand there just so, except for what prose puts around words. Where a script runs
on without spaces (Chinese, Japanese, Korean, Thai, …) any part of a run counts, and a change of script ends a
word. Punctuation alone counts only where nothing else is asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import regex

from openmem_hook.text import searchable

MOST_PIECES = 32
LONGEST_PIECE = 1_000
"""Characters; what is pasted beyond either limit is not looked for, and the answer says so."""

_SPACELESS = (
    "\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Han, Kana, Hangul, wide and narrow forms. A whole run of them is one token to the
full-text index, so texts with any of them are searched here."""
_RUNS = regex.compile(f"[{_SPACELESS}]")
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{Co}\p{M}]+")
_PROSE = ".,;:!?()[]{}<>'`“”‘’«»…"
"""What people put around a word without meaning it."""
_MARKS = regex.compile("[\u0300-\u036f]")
_ACCENTS = regex.compile("[\u00c0-\u024f\u0300-\u036f\u0370-\u052f\u1e00-\u1fff]")
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
    if _ACCENTS.search(text):
        text = unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text)))
    return text.casefold()


@dataclass(frozen=True)
class Piece:
    """One thing that a query asks for: a word, a phrase or the beginning of a word."""

    text: str
    """As it was typed, without the quotes or the star."""
    tokens: tuple[str, ...]
    """Its words as the full-text index has them; none for bare punctuation."""
    is_prefix: bool = False
    """Whether its last word may go on."""

    @property
    def is_verbatim(self) -> bool:
        """The full-text index finds its words next to each other; what stands around them is still to be seen."""
        return self.tokens != (self.text,)

    @property
    def runs_on(self) -> bool:
        """Whether part of it is written without spaces."""
        return runs_on(self.text)

    @property
    def expression(self) -> str:
        """What MATCH takes for it."""
        phrase = self.text.replace('"', '""')
        return f'"{phrase}" *' if self.is_prefix else f'"{phrase}"'

    @cached_property
    def comparable(self) -> str:
        """Its text as it is compared."""
        return fold(self.text)

    @cached_property
    def _ends(self) -> tuple[bool, bool]:
        """Whether a word begins and ends where the piece does, so that no other letter may stand beside it."""
        if self.runs_on or not self.tokens:
            return False, False
        return self.text.startswith(self.tokens[0]), self.text.endswith(self.tokens[-1]) and not self.is_prefix

    def find(self, comparable: str) -> int:
        """Where the piece stands in a text as it is compared (`fold`), -1 for nowhere."""
        begins, ends = self._ends
        at = comparable.find(self.comparable)
        while at >= 0:
            end = at + len(self.comparable)
            # A letter beside it makes its first or last word a part of a longer one.
            is_part = (begins and at and _goes_on(comparable[at - 1])) or (ends and _goes_on(comparable[end : end + 1]))
            if not is_part:
                return at
            at = comparable.find(self.comparable, at + 1)
        return -1


def _goes_on(char: str) -> bool:
    """Whether a word that stands beside this sign would be part of a longer one."""
    return char.isalnum() and not _RUNS.match(char)


@dataclass(frozen=True)
class Query:
    """What a search by words asks for."""

    pieces: tuple[Piece, ...]
    """All of them have to be there."""
    is_cut: bool = False
    """Whether more was typed than is looked for."""
    is_bare: bool = False
    """Only punctuation, symbols or emoji: they match as they are."""

    @property
    def runs_on(self) -> bool:
        """Whether part of it is written without spaces."""
        return any(piece.runs_on for piece in self.pieces)

    @property
    def is_path(self) -> bool:
        """Whether it names one file: `src/app.py`, `app.py`."""
        return len(self.pieces) == 1 and _PATH.fullmatch(self.pieces[0].text) is not None

    @property
    def verbatim_pieces(self) -> tuple[Piece, ...]:
        """The pieces whose place the index leaves open."""
        return tuple(piece for piece in self.pieces if piece.is_verbatim)

    def expression(self, joiner: str = "AND") -> str:
        """What MATCH takes for it."""
        return f" {joiner} ".join(piece.expression for piece in self.pieces)

    def words_alone(self) -> str:
        """The same query with what is between words left open."""
        return " ".join(token for piece in self.pieces for token in piece.tokens)

    def is_in(self, comparable: str) -> bool:
        """Whether a text as it is compared has every piece."""
        return all(piece.find(comparable) >= 0 for piece in self.pieces)

    def place_in(self, comparable: str) -> int:
        """Where the first piece that is there stands, 0 for none."""
        return max(0, min((at for piece in self.pieces if (at := piece.find(comparable)) >= 0), default=0))


def parse(text: str) -> Query:
    """The query in a text; without pieces where there is nothing to look for. Never raises."""
    words: list[Piece] = []
    symbols: list[Piece] = []
    is_cut = False
    text = _WIDE.sub(lambda run: unicodedata.normalize("NFKC", run[0]), searchable(text))
    for phrase, word in _PIECES.findall(text):
        # A phrase counts as it stands between its quotes, a word without what prose puts around it.
        source = phrase.strip() or word.strip(_PROSE) or word
        is_cut = is_cut or len(source) > LONGEST_PIECE
        source = source[:LONGEST_PIECE]
        tokens = tuple(_TOKEN.findall(source))
        is_prefix = not phrase and bool(tokens) and source.endswith("*")
        piece = Piece(source.rstrip("*") if is_prefix else source, tokens, is_prefix)
        (words if tokens else symbols).append(piece)
    # Symbols count only where nothing else is asked for.
    pieces = list(dict.fromkeys(words or [piece for piece in symbols if piece.text]))
    return Query(tuple(pieces[:MOST_PIECES]), is_cut or len(pieces) > MOST_PIECES, not words)


def choose_best_lines(query: Query, lines: Iterable[tuple[int, str]], most: int) -> list[int]:
    """Where no line has all pieces: the numbers, in their order, of those lines that together show as many as possible.

    `lines` are numbers and texts. Lines with more pieces are preferred, and each has to add one.
    """
    comparable = [(number, fold(text)) for number, text in lines]
    counts = [(-sum(piece.find(text) >= 0 for piece in query.pieces), number, text) for number, text in comparable]
    missing, numbers = set(query.pieces), list[int]()
    for _, number, text in sorted(counts, key=lambda line: line[:2]):
        new = {piece for piece in missing if piece.find(text) >= 0}
        if new:
            numbers.append(number)
            missing -= new
        if len(numbers) == most:
            break
    return sorted(numbers)
