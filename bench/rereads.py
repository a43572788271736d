"""Files that an agent reads again after a real compaction: would a search for the path have given the stored text?

Claude Code's Read calls alone; Codex reads through its shell. Two searches: the path as it is, of which the first three
messages told count, and the path among all that was said with the messages beside each hit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.boundaries import Boundary, rows_at
from bench.estimates import corpus_dir
from bench.figures import Figure, Section

TOP = 3
SAME_CHARS = 400
"""Of a file's stored text, that have to be in a message for it to hold the file."""
SEQ = re.compile(r"^(?:#\d+ .*|  ~ )\bseq=(\d+) ", re.MULTILINE)
SEARCHES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("plain", TOP, {}),
    ("neighbours", 3 * TOP, {"role": "all", "context": 1}),
)
"""Names, messages that count, in the order in which they are told, and what is asked for beside the path."""


def reads(messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Path and call id of each file that was read."""
    for message in messages:
        for block in message.get("content", ()) if isinstance(message.get("content"), list) else ():
            if block.get("type") == "tool_use" and block.get("name") == "Read":
                yield str(block["input"].get("file_path")), str(block["id"])


def results(messages: Sequence[Any]) -> dict[str, str]:
    """Call id → what it returned."""
    blocks = (b for m in messages if isinstance(m.get("content"), list) for b in m["content"])
    answered = ((b["tool_use_id"], b["content"]) for b in blocks if b.get("type") == "tool_result")
    return {call: held if isinstance(held, str) else _joined(held) for call, held in answered}


def _joined(parts: Any) -> str:
    return "\n".join(part.get("text", "") for part in parts or () if isinstance(part, dict))


def at(boundary: Boundary) -> dict[str, Any]:
    """One row: reads after the boundary, those of a file read before, and the files of these that a search gives."""
    texts = results(boundary.before)
    known: dict[str, list[str]] = {}
    for path, call in reads(boundary.before):
        if texts.get(call, "").strip():
            known.setdefault(path, []).append(texts[call])
    after = [path for reply in boundary.ahead for path, _ in reads(reply)]
    again = [path for path in dict.fromkeys(after) if path in known]
    return {
        "session": boundary.session.path.name.split(".")[0],
        "at": boundary.index,
        "reads": len(after),
        "reads_again": sum(path in known for path in after),
        "files_again": len(again),
        **{name: sum(given(boundary, p, known[p], most, more) for p in again) for name, most, more in SEARCHES},
    }


def given(boundary: Boundary, path: str, stored: Sequence[str], most: int, more: dict[str, Any]) -> bool:
    """Whether one of the first messages told holds the text of one of the reads."""
    told = boundary.ask("smart_compact_search", query=f'"{path}"', limit=TOP, **more)
    starts = [text.strip()[:SAME_CHARS] for text in stored]
    for seq in list(dict.fromkeys(SEQ.findall(told)))[:most]:
        held = boundary.ask("smart_compact_get", seq=int(seq))
        if any(start in held for start in starts):
            return True
    return False


def run(folder: Path, quick: bool) -> Section:
    rows = rows_at("claude-code/*.jsonl*", at, quick)
    files = sum(row["files_again"] for row in rows)
    if not files:
        return Section("rereads", f"left out: no file is read again after a compaction in {corpus_dir()}", ())
    figures = [
        Figure("reads that open a file again", 100 * _sum(rows, "reads_again") / _sum(rows, "reads"), "%"),
        Figure("stored text in the top 3", 100 * _sum(rows, "plain") / files, "%"),
        Figure("in the top 3 or beside them", 100 * _sum(rows, "neighbours") / files, "%"),
    ]
    return Section("rereads", "files read again after a real compaction", figures, rows)


def _sum(rows: Sequence[dict[str, Any]], key: str) -> int:
    return sum(row[key] for row in rows)
