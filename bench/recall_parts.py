"""The page's parts about what can still be had: what was said long ago, details needed again, files read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.markdown import percent, plural, table

Row = Mapping[str, Any]
Rows = Sequence[Row]
Result = Mapping[str, Any]
"""A kept result: `rows`, and how they were made."""

# --- recall -------------------------------------------------------------------------------------------------


def recall(held: Result) -> Iterator[str]:
    rows: Rows = held["rows"]
    yield _RECALL
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


def needed(held: Result) -> Iterator[str]:
    rows: Rows = held["rows"]
    yield _NEEDED.format(boundaries=len(rows), sessions=len({row["session"] for row in rows}))
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


def rereads(held: Result) -> Iterator[str]:
    rows: Rows = held["rows"]
    yield _REREADS
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


# --- answers ------------------------------------------------------------------------------------------------


def answers(results: Mapping[str, Result]) -> Iterator[str]:
    """What a user wants to know, a line each."""
    if "recall" in results:
        yield from _recall_answers(results["recall"]["rows"])
    if "needed" in results:
        rows = results["needed"]["rows"]
        kinds = list(rows[0]["needed"])
        ours, summary, search, widest = (_kinds(rows, way, kinds)[-1] for way in WAYS)
        yield (
            f"Of the details that agents wrote again after a real compaction, the client's own summary had kept "
            f"{summary}, our request still showed {ours}; one search finds {search}, and {widest} when it asks for all "
            f"roles.{_reread(results)}"
        )


def _reread(results: Mapping[str, Result]) -> str:
    if "rereads" not in results:
        return ""
    rows = results["rereads"]["rows"]
    sums = {key: sum(row[key] for row in rows) for key in ("files_again", "plain", "neighbours")}
    return (
        f" Of the files that they read again, a search for the path alone finds {_of(sums, 'plain')[1]}, and "
        f"{_of(sums, 'neighbours')[1]} when it asks for all roles and neighbours."
    )


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
        f"answered right with the plugin's tools. Without a tool: {span('openmem, context only')} from what the plugin "
        f"leaves in the request, {span('tail only')} from the newest messages alone, {span('CliffCompaction')} with "
        "CliffCompaction."
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


# --- words --------------------------------------------------------------------------------------------------

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
the session's end. A search for the path counts when one of the first three messages that it tells holds the first 400
characters of what was read before. A result's text holds no path: a search for one tells the results of the newest
calls that name it before all else.
"""
