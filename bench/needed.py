"""Details that are needed again: seen before a real compaction, and written by the agent in its next 40 messages.

Paths, hashes, identifiers and numbers. Of each: is it still in our request, is it in what the client's own compaction
sent in its place, and does one search for it find it in the store?
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from bench.boundaries import Boundary, rows_at
from bench.estimates import corpus_dir
from bench.figures import Figure, Section

MESSAGES = 40
DETAIL = re.compile(
    r"(?P<path>(?<![\w./-])(?:[\w.@-]*/)+[\w@-]+(?:\.[\w-]+)+)"
    r"|(?P<hash>\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b)"
    r"|(?P<identifier>\b(?=\w*(?:[a-z][A-Z]|[A-Za-z0-9]_[A-Za-z0-9]))[A-Za-z]\w{5,}\b)"
    r"|(?P<number>\b\d{4,}\b)"
)
KINDS = ("path", "hash", "identifier", "number")
SEEN = frozenset({"text", "call", "result", "recap", "notice", "reminder", "server"})
WRITTEN = frozenset({"text", "call"})
WAYS = ("ours", "summary", "search", "search_all")
"""Our request; the client's summary; one search as the tool does it by default (what users and tools said), and one
over what the agent said, too."""


def details(text: str) -> dict[str, str]:
    """Detail → kind. Of a path the last two names: what stands above them is the same for a whole project."""
    found = ((match[0], str(match.lastgroup)) for match in DETAIL.finditer(text))
    return {"/".join(detail.split("/")[-2:]): kind for detail, kind in found}


def at(boundary: Boundary) -> dict[str, Any]:
    """One row: of each kind how many were needed, and how many each way had."""
    before = boundary.text(boundary.before, SEEN)
    ahead = [raw for reply in boundary.ahead[:MESSAGES] for raw in reply]
    written = details(boundary.text(ahead, WRITTEN))
    needed = {detail: kind for detail, kind in written.items() if detail in before}
    ours, summary = (boundary.text(held, SEEN) for held in (boundary.ours, boundary.summary))
    had = {way: Counter[str]() for way in WAYS}
    for detail, kind in needed.items():
        had["ours"][kind] += detail in ours
        had["summary"][kind] += detail in summary
        had["search"][kind] += found(boundary, detail)
        had["search_all"][kind] += found(boundary, detail, role="all")
    return {
        "session": boundary.session.path.name.split(".")[0],
        "at": boundary.index,
        "tokens_before": boundary.tokens(boundary.before),
        "tokens_ours": boundary.tokens(boundary.ours),
        "tokens_summary": boundary.tokens(boundary.summary),
        "needed": {kind: list(needed.values()).count(kind) for kind in KINDS},
        **{way: {kind: had[way][kind] for kind in KINDS} for way in WAYS},
    }


def found(boundary: Boundary, detail: str, **more: str) -> bool:
    told = boundary.ask("smart_compact_search", query=f'"{detail}"', **more)
    return any(detail in line.partition("| ")[2] for line in told.splitlines())


def run(folder: Path, quick: bool) -> Section:
    rows = rows_at("*/*.jsonl*", at, quick)
    if not rows:
        return Section("needed", f"left out: no compaction in {corpus_dir()}", ())
    return Section("needed", "details written again after a real compaction", _figures(rows), rows)


def _figures(rows: list[dict[str, Any]]) -> list[Figure]:
    total = sum(sum(row["needed"].values()) for row in rows)
    names = ("in our request", "in the client's summary", "found by one search", "found, the agent's words too")
    return [
        Figure(name, 100 * sum(sum(row[way].values()) for row in rows) / total, "%")
        for name, way in zip(names, WAYS, strict=True)
    ]
