"""docs/benchmarks.md, made from the results in docs/benchmarks: `python -m tests.bench.document`.

Nothing in the page's tables is written by hand; a test compares the page with what this makes of the committed files.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import Section

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "benchmarks"
PAGE = DOCS / "benchmarks.md"
PACKAGES = ("openmem-hook", "litellm", "cliffcompaction", "tokenizers")

Row = Mapping[str, Any]
Rows = Sequence[Row]


def keep(section: Section) -> None:
    """Writes a section's rows beside the others, its charts, and the page anew."""
    RESULTS.mkdir(exist_ok=True)
    held = {
        "section": section.name,
        "about": section.about,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()},
        "rows": list(section.rows),
    }
    rows = ",\n  ".join(json.dumps(row) for row in held.pop("rows"))
    head = json.dumps(held, indent=1).removesuffix("\n}")
    (RESULTS / f"{section.name}.json").write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', "utf-8")
    write()


def write() -> None:
    from tests.bench import charts

    results = load()
    charts.draw(results, RESULTS)
    PAGE.write_text(page(results), "utf-8")


def load() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole document."""
    parts = [_TOP.format(answers=_answers(results))]
    for name, (text, tables) in _PARTS.items():
        if name in results:
            parts.append(text.format(**_numbers(name, results[name]["rows"])))
            parts += tables(results[name]["rows"])
    parts.append(_END.format(made=_made(results)))
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    return "\n".join([*lines, ""])


def plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("sh") else f"{kind}s"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


# --- recall -------------------------------------------------------------------------------------------------


def _recall(rows: Rows) -> Iterator[str]:
    for task in dict.fromkeys(row["task"] for row in rows):
        chosen = [row for row in rows if row["task"] == task]
        counted = any(row["counts"]["asked"] for row in chosen)
        head = ("right, of 24", "leniently", *(("lookups", "counts") if counted else ("stale",)))
        more = ("requests", "tool calls", "peak prompt", "cache hits", "cost")
        yield table((task, *head, *more), [_recall_row(row, counted) for row in chosen])


def _recall_row(row: Row, counted: bool) -> list[object]:
    lookups, counts = row["lookups"], row["counts"]
    kinds = [f"{one['strict']} of {one['asked']}" for one in (lookups, counts)] if counted else [lookups["stale"]]
    ended = f" (refused at {row['refused_at']})" if row["refused_at"] else ""
    return [
        row["arm"],
        lookups["strict"] + counts["strict"],
        lookups["lenient"] + counts["lenient"],
        *kinds,
        f"{row['requests']}{ended}",
        row["tool_calls"],
        f"{row['peak_prompt']:,}",
        percent(row["hit_share"] or 0, 1),
        f"${row['dollars']:.2f}",
    ]


# --- boundaries ---------------------------------------------------------------------------------------------

WAYS = {
    "ours": "still in our request",
    "summary": "kept by the client's summary",
    "search": "found by one search, as the tool is called by default",
    "search_all": 'found by one search with `role="all"`',
}


def _needed(rows: Rows) -> Iterator[str]:
    kinds = list(rows[0]["needed"])
    body = [[said, *_kinds(rows, way, kinds)] for way, said in WAYS.items()]
    counted = ["how many", *(_all(rows, "needed", [kind]) for kind in kinds), _all(rows, "needed", kinds)]
    yield table(("details written again", *map(plural, kinds), "all"), [counted, *body])
    each = [
        (
            f"{row['session']}, request {row['at']}",
            sum(row["needed"].values()),
            *(percent(sum(row[way].values()), sum(row["needed"].values())) for way in WAYS),
            f"{row['tokens_before']:,}",
            f"{row['tokens_ours']:,}",
            f"{row['tokens_summary']:,}",
        )
        for row in rows
    ]
    head = ("boundary", "needed", "our request", "summary", "search", "all roles")
    yield table((*head, "tokens before", "our request", "summary"), each)


def _all(rows: Rows, way: str, kinds: Sequence[str]) -> int:
    return sum(row[way][kind] for row in rows for kind in kinds)


def _kinds(rows: Rows, way: str, kinds: Sequence[str]) -> list[str]:
    groups = [*([kind] for kind in kinds), kinds]
    return [percent(_all(rows, way, group), _all(rows, "needed", group)) for group in groups]


def _rereads(rows: Rows) -> Iterator[str]:
    keys = ("reads", "reads_again", "files_again", "plain", "neighbours")
    sums = {key: sum(row[key] for row in rows) for key in keys}
    yield table(
        ("after a compaction", "", ""),
        [
            ("reads of a file", sums["reads"], ""),
            ("of these, of a file read before it", sums["reads_again"], percent(sums["reads_again"], sums["reads"])),
            ("different files", sums["files_again"], ""),
            ("stored text in the top 3 of a search for the path", *_of(sums, "plain")),
            ('in the top 3 with `role="all"`, or beside them (`context=1`)', *_of(sums, "neighbours")),
        ],
    )


def _of(sums: Mapping[str, int], key: str) -> tuple[int, str]:
    return sums[key], percent(sums[key], sums["files_again"])


# --- words --------------------------------------------------------------------------------------------------


def _numbers(name: str, rows: Rows) -> dict[str, Any]:
    sessions = {row["session"] for row in rows if "session" in row}
    return {"boundaries": len(rows), "sessions": len(sessions)} if name != "recall" else {}


def _answers(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What a user wants to know, a line each."""
    found: list[str] = []
    if "recall" in results:
        found += _recall_answers(results["recall"]["rows"])
    if "needed" in results:
        rows = results["needed"]["rows"]
        kinds = list(rows[0]["needed"])
        ours, summary, search, widest = (_kinds(rows, way, kinds)[-1] for way in WAYS)
        found.append(
            f"Of the details that agents wrote again after a real compaction, the client's own summary had kept "
            f"{summary}, our request still showed {ours}; one search finds {search}, and {widest} when it asks for all "
            "roles."
        )
    if "rereads" in results:
        sums = {
            key: sum(row[key] for row in results["rereads"]["rows"]) for key in ("files_again", "plain", "neighbours")
        }
        found.append(
            f"Of the files that agents read again then, a search for the path alone gives the stored text of "
            f"{_of(sums, 'plain')[1]}, and of {_of(sums, 'neighbours')[1]} when it asks for all roles and neighbours."
        )
    return "\n".join(textwrap.fill(f"- {line}", 120, subsequent_indent="  ") for line in found)


def _recall_answers(rows: Rows) -> Iterator[str]:
    """Over the tasks that don't fit the window."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    over = [task for task in tasks if _row(rows, task, "keep everything")["refused_at"]]

    def span(*arms: str) -> str:
        shares = [_share(_row(rows, task, arm)) for task in over for arm in arms]
        least, most = min(shares), max(shares)
        return f"{least:.0f} %" if round(least) == round(most) else f"{least:.0f} to {most:.0f} %"

    yield (
        f"Questions about conversations that don't fit the window: {span('openmem, with search', 'openmem, with SQL')} "
        "answered right with the plugin's tools."
    )
    yield (
        f"Without a tool: {span('openmem, context only')} from what the plugin leaves in the request, "
        f"{span('tail only')} from the newest messages alone, {span('CliffCompaction')} with CliffCompaction."
    )
    done = [task for task in over if not _row(rows, task, "CliffCompaction")["refused_at"]]
    longest = max(done, key=lambda task: _row(rows, task, "tail only")["requests"])
    ours, peer, tail = (
        f"${_row(rows, longest, arm)['dollars']:.2f}"
        for arm in ("openmem, with search", "CliffCompaction", "tail only")
    )
    yield (
        f"Prompts of the longest one that all of these came through ({longest}): {ours} with the plugin and search, "
        f"{peer} with CliffCompaction, {tail} with a sliding tail, which loses the provider's cache."
    )


def _row(rows: Rows, task: str, arm: str) -> Row:
    return next(row for row in rows if (row["task"], row["arm"]) == (task, arm))


def _share(row: Row) -> float:
    scores = (row["lookups"], row["counts"])
    return 100 * sum(score["strict"] for score in scores) / sum(score["asked"] for score in scores)


def _made(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, held in results.items():
        versions = ", ".join(f"{package} {version}" for package, version in held["versions"].items())
        machine = held["machine"]
        lines.append(
            f"- [{name}.json](benchmarks/{name}.json): {versions}; Python {machine['python']}, {machine['system']}, "
            f"{machine['cores']} cores."
        )
    return "\n".join(lines)


_TOP = """\
# Benchmarks

{answers}

Everything here ran offline and without a model. The scripted agent of the first part reads without fault and always
looks: its scores are the ceiling of a mechanism, not what a model would reach with it. Run it again with
`make bench ARGS="recall needed rereads --save"`; this page is made from the [raw results](benchmarks), never by hand.
With a key, `python -m tests.bench.with_model --model NAME` has a real model do the tasks of the first part.
"""

_RECALL = """\
## Questions about what was said long ago

Two synthetic tasks, the same for the same seed (the task's name). *R*: so many `SET` lines in batches of 100, a key and
24 random words with a tag; then 24 `GET`s. *Overwritten*: a tenth of the lines sets an earlier key again, half of the
questions ask for such a key, and an old value is a stale answer. *L*: so many log lines in batches of 14 to 54; then 12
lines are asked for by request id and 12 counts by level and service. The last size of each is a step beyond the usual.
A batch is a typed message.

Every way stands before the same simulated provider: 200,000 tokens of window, its prompt cache, claude-sonnet-4-5 at
LiteLLM's list price, 20 s between requests. The plugin has its defaults (it trims at 125,000 tokens), which is also
the size of the tail and the peer's threshold. The agent answers from what the last request shows, else calls the tool
once; a tool call is one more request. *Right* is the whole value or the exact count; *leniently* the right tag, or a
count within 1 %. A request over the window is refused, and with it ends the conversation. CliffCompaction takes four
characters for a token and keeps what a person typed up to 20,000 characters a message, so that its prompts grow past
its threshold, and where batches are short past the window.

![Right answers by size and way](benchmarks/recall.svg)
"""

_NEEDED = """\
## Details that are needed again

At each of {boundaries} real compactions in {sessions} recorded sessions of Claude Code and Codex: paths (their last two
names), hashes, identifiers and numbers that were there before it, and that the agent wrote again in its next 40
messages. The whole history went through the plugin as `openmem replay` sends it, so that our request is whatever its
own trims had left at that moment, several times the summary's size. One search is `smart_compact_search` for the detail
in quotes. Details that the agent could have read anew from its files count like all others.

![What was kept](benchmarks/needed.svg)
"""

_REREADS = """\
## Files read again

At the same compactions in Claude Code's sessions: files that the agent had read before and opened again after it, until
the session's end. A search for the path counts when a hit, or a message shown beside it, holds the first 400 characters
of what was read before. A result's text holds no path, and the call that does is the agent's own: a search
among what users and tools said, the default, can't find it.
"""

_END = """\
## What these numbers don't show

- How well a model uses the tools, or how often it forgets to look. No model ran.
- Whether an answer was any worse for what had left: only whether details could still be had.
- Time. Figures of speed, memory and load depend on the machine: `make bench` measures them on yours.

## How it was made

{made}
"""

_PARTS: Mapping[str, tuple[str, Callable[[Rows], Iterator[str]]]] = {
    "recall": (_RECALL, _recall),
    "needed": (_NEEDED, _needed),
    "rereads": (_REREADS, _rereads),
}


if __name__ == "__main__":
    write()
