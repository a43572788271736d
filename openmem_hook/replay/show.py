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
    console.print(_compared(sessions, total))
    console.print(_each(sessions))
    for line in remarks(sessions, total):
        console.print(Text(line))


def name(text: str, most: int = 60) -> str:
    """A name in one line of printable characters, its middle left out where it is long."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[-(most // 2 - 1) :]}"


def remarks(sessions: Sequence[Figures], total: Figures) -> Iterator[str]:
    """What the tables don't say, a line each."""
    requests, refused = total["requests"], total["with"]["refused"]
    if refused:
        without = total["without"]["refused"]
        yield f"{refused:,} of {requests:,} requests would be refused with the plugin, {without:,} without it."
    else:
        yield f"Every one of {requests:,} requests is accepted by the simulated provider, with its strict rules."
    checked, close = total["cache_checked"], total["cache_close"]
    if checked:
        others = "" if close == checked else "; the cost of the others (?) is a guess"
        yield (
            f"The simulated cache is within {CLOSE * 100:.0f} points of the recorded hit share in {close} of {checked} "
            f"sessions{others}."
        )
    if checked < len(sessions):
        yield f"{len(sessions) - checked} of {len(sessions)} sessions have no cache counts: their cost is a guess (?)."
    unpriced = sorted({name(model) for one in sessions for model in one["without_price"]})
    if unpriced:
        yield f"Without a list price, and left out of the cost both ways: {', '.join(unpriced)}."
    skipped = sum(sum(one["skipped"].values()) for one in sessions)
    if skipped:
        yield f"{skipped:,} lines or records were broken, unknown or no part of a conversation, and left out."
    cleared = sum(one["cleared_by_client"] for one in sessions)
    if cleared:
        yield f"In {cleared:,} requests the client had cleared old results silently: what they held is not in the file."
    yield "Costs are of prompts at list prices; answers cost the same both ways. Times are of this machine, now."


def amount(count: float) -> str:
    return f"{count / 1e6:,.2f}M" if count >= 1e6 else f"{count / 1e3:,.1f}k"


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{share * 100:.{digits}f} %"


def money(dollars: float | None, sure: bool) -> str:
    return "–" if dollars is None else f"${dollars:,.2f}{'' if sure else ' ?'}"


def change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None or not before else f"{(after - before) / before * 100:+.0f} %"


def label(file: str, most: int) -> str:
    """A transcript's name without what all their names end in."""
    return name(_ENDING.sub("", file) or file, most)


def _compared(sessions: Sequence[Figures], total: Figures) -> Table:
    """Everything together, a row a figure."""
    said = label(sessions[0]["file"], 40) if len(sessions) == 1 else f"{len(sessions)} sessions"
    title = Text.assemble((f"{said}, {total['requests']:,} requests", "bold"))
    table = Table("", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("without", "with openmem", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in compared(sessions, total):
        table.add_row(*row)
    return table


def compared(sessions: Sequence[Figures], total: Figures) -> Iterator[tuple[str, str, str, str]]:
    """Name, without, with, change."""
    before, after = total["without"], total["with"]
    sure = total["cache_close"] == len(sessions)
    for said, key in (("tokens sent", "tokens"), ("largest prompt, tokens", "largest"), ("bytes sent", "bytes")):
        yield said, amount(before[key]), amount(after[key]), change(before[key], after[key])
    paid, pays = before["dollars"], after["dollars"]
    yield "cost of prompts, list price", money(paid, sure), money(pays, sure), change(paid, pays)
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


def _each(sessions: Sequence[Figures]) -> Table:
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
