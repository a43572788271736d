"""The figures as aligned tables on a terminal. Names come from files and transcripts: never markup, never controls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openmem_hook.replay.summary import CLOSE, Figures

_ENDING = re.compile(r"\.(jsonl|json)(\.gz|\.xz)?$")


def show(console: Console, sessions: Sequence[Figures], total: Figures) -> None:
    """Prints both tables and the remarks."""
    console.print(_comparison_table(sessions, total))
    console.print(_session_table(sessions))
    for line in remarks(sessions, total):
        console.print(Text(line))


def name(text: str, most: int = 60) -> str:
    """A name in one line of printable characters, its middle left out where it is long."""
    line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return line if len(line) <= most else f"{line[: most // 2]}…{line[-(most // 2 - 1) :]}"


def remarks(sessions: Sequence[Figures], total: Figures) -> Iterator[str]:
    """What the tables don't say, a line each."""
    requests, refusals = total["requests"], total["with"]["refused"]
    if refusals:
        without = total["without"]["refused"]
        yield f"{refusals:,} of {requests:,} requests would be refused with the plugin, {without:,} without it."
    else:
        yield f"Every one of {requests:,} requests is accepted by the simulated provider, with its strict rules."
    checks, close = total["cache_checked"], total["cache_close"]
    if checks:
        others = "" if close == checks else "; the cost of the others (?) is a guess"
        yield (
            f"The simulated cache is within {CLOSE * 100:.0f} points of the recorded hit share in {close} of {checks} "
            f"sessions{others}."
        )
    if checks < len(sessions):
        yield f"{len(sessions) - checks} of {len(sessions)} sessions have no cache counts: their cost is a guess (?)."
    without_price = sorted({name(model) for one in sessions for model in one["without_price"]})
    if without_price:
        yield f"Without a list price, and left out of the cost both ways: {', '.join(without_price)}."
    omissions = sum(sum(one["skipped"].values()) for one in sessions)
    if omissions:
        yield f"{omissions:,} lines or records were broken, unknown or no part of a conversation, and left out."
    clearings = sum(one["cleared_by_client"] for one in sessions)
    if clearings:
        yield (
            f"In {clearings:,} requests the client had cleared old results silently: what they held is not in the file."
        )
    yield "Costs are of prompts at list prices; answers cost the same both ways. Times are of this machine, now."


def amount(count: float) -> str:
    """A count in thousands or millions."""
    return f"{count / 1e6:,.2f}M" if count >= 1e6 else f"{count / 1e3:,.1f}k"


def percent(share: float | None, digits: int = 1) -> str:
    """A share from 0 to 1 in percent; a dash where it is unknown."""
    return "–" if share is None else f"{share * 100:.{digits}f} %"


def money(dollars: float | None, sure: bool) -> str:
    """Dollars, with a question mark where they rest on a guess."""
    return "–" if dollars is None else f"${dollars:,.2f}{'' if sure else ' ?'}"


def change(before: float | None, after: float | None) -> str:
    """A change in percent of the value before."""
    return "–" if before is None or after is None or not before else f"{(after - before) / before * 100:+.0f} %"


def label(file: str, most: int) -> str:
    """A transcript's name without what all their names end in."""
    return name(_ENDING.sub("", file) or file, most)


def _comparison_table(sessions: Sequence[Figures], total: Figures) -> Table:
    """Everything together, a row a figure."""
    subject = label(sessions[0]["file"], 40) if len(sessions) == 1 else f"{len(sessions)} sessions"
    title = Text.assemble((f"{subject}, {total['requests']:,} requests", "bold"))
    table = Table("", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("without", "with openmem", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in comparison(sessions, total):
        table.add_row(*row)
    return table


def comparison(sessions: Sequence[Figures], total: Figures) -> Iterator[tuple[str, str, str, str]]:
    """Rows of name, without, with, change."""
    before, after = total["without"], total["with"]
    sure = total["cache_close"] == len(sessions)
    for what, key in (("tokens sent", "tokens"), ("largest prompt, tokens", "largest"), ("bytes sent", "bytes")):
        yield what, amount(before[key]), amount(after[key]), change(before[key], after[key])
    cost, new_cost = before["dollars"], after["dollars"]
    yield "cost of prompts, list price", money(cost, sure), money(new_cost, sure), change(cost, new_cost)
    yield "share read from the cache", percent(before["hit_share"]), percent(after["hit_share"]), ""
    yield "cache misses", f"{before['misses']:,}", f"{after['misses']:,}", ""
    yield "requests the provider refuses", f"{before['refused']:,}", f"{after['refused']:,}", ""
    yield "trims", "–", f"{total['trims']:,}", ""


_COLUMNS = (
    "re-\nquests",
    "\ntrims",
    "tokens\nsent",
    "\ncost",
    "cache hits, %\nrec./sim./with",
    "esti-\nmate",
    "hook\nms",
)


def _session_table(sessions: Sequence[Figures]) -> Table:
    """A row a session, in 80 columns."""
    title = Text("Each session: change; hits recorded, simulated, with openmem; median error of the estimate")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("\nsession", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for one in sessions:
        before, after, check, took = one["without"], one["with"], one["cache_check"], one["hook_ms"]
        sure = "" if check["close"] else "?"
        shares = (check["recorded"], check["simulated"], after["hit_share"])
        table.add_row(
            Text(label(one["file"], 12)),
            f"{one['requests']:,}",
            f"{one['trims']:,}",
            change(before["tokens"], after["tokens"]),
            change(before["dollars"], after["dollars"]) + sure,
            "/".join("–" if share is None else f"{share * 100:.1f}" for share in shares),
            percent(one["estimate_error"]["all"]["median"]),
            f"{took['median']:.1f}",
        )
    return table
