"""What a person sees at the end, and the checks that decide whether the demo worked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from rich import box
from rich.console import Console
from rich.table import Table

from demo.chart import chart
from demo.session import DETAIL, Sent, Session
from demo.stored import Stored

MODEL_LIMIT = 200_000
ROWS = 8
ESTIMATE_ERROR = 0.01
"""Whether a prompt is at the limit is known before the provider counts it; see the `usage` events."""


@dataclass(frozen=True, slots=True)
class Check:
    said: str
    good: bool


def breaks(sent: Sequence[Sent]) -> list[int]:
    """Places of requests for which the cache did not hold all of the request before."""
    return [at for at in range(1, len(sent)) if sent[at].cached < sent[at - 1].tokens]


def cut_places(sent: Sequence[Sent]) -> list[int]:
    """Places of requests that are shorter than the one before: the session only grows, so these were trimmed."""
    return [at for at in range(1, len(sent)) if sent[at].tokens < sent[at - 1].tokens]


def checks(session: Session, stored: Stored, trim_at: int) -> Iterator[Check]:
    through = session.through
    refused = f": {session.refused[0]}" if session.refused else ""
    yield Check(f"the strict provider accepted all {len(through)} requests{refused}", not session.refused)
    yield Check(f"the session was trimmed more than once ({len(stored.trims)} times)", len(stored.trims) > 1)
    largest = max(sent.tokens for sent in through)
    yield Check(
        f"no prompt went over {trim_at:,} tokens by more than {ESTIMATE_ERROR:.0%} (largest: {largest:,})",
        largest <= trim_at * (1 + ESTIMATE_ERROR),
    )
    missed = len(breaks(through))
    yield Check(f"the prompt cache missed at trims and nowhere else ({missed} times)", missed == len(stored.trims))
    yield Check(f"one usage record a request ({len(stored.usage)})", len(stored.usage) == len(through))
    yield Check(
        f"every message is in the store, once ({stored.messages} of {session.sent_messages})",
        stored.messages == session.sent_messages,
    )
    gone = DETAIL not in json.dumps(session.last_body)
    yield Check("the detail is not in the last request any more", gone)
    found = stored.found
    yield Check(
        "the detail was read back from the store, marked as out of context",
        len(found) == 1 and found[0].text == DETAIL and not found[0].in_context,
    )


def show(console: Console, session: Session, stored: Stored, trim_at: int) -> bool:
    """Prints everything; whether all checks held."""
    console.print()
    console.rule("Prompt tokens of each request", align="left")
    console.print("[green]█[/] sent, with openmem_hook   [red]·[/] without it   [yellow]╌[/] limit of this demo\n")
    for line in chart([s.tokens for s in session.through], [s.tokens for s in session.direct], trim_at):
        console.print(line)
    console.print()
    console.print(_prompts(session))
    console.print(_totals(session, stored))
    console.print(_trims(session, stored))
    _detail(console, stored)
    console.rule("Checks", align="left")
    held = list(checks(session, stored, trim_at))
    for check in held:
        console.print(f"[green]✓[/] {check.said}" if check.good else f"[bold red]✗[/] {check.said}", highlight=False)
    return all(check.good for check in held)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=box.ROUNDED)
    table.add_column(first, min_width=10)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _prompts(session: Session) -> Table:
    table = _table("Prompt size", "request", "without", "with", "from cache", "fewer")
    last = len(session.through) - 1
    for at in dict.fromkeys(round(last * step / (ROWS - 1)) for step in range(ROWS)):
        sent, would_be = session.through[at], session.direct[at]
        over = " ✗" if would_be.tokens > MODEL_LIMIT else ""
        table.add_row(
            str(at + 1),
            f"{would_be.tokens:,}{over}",
            f"{sent.tokens:,}",
            f"{sent.cached / sent.tokens:.0%}",
            f"{would_be.tokens - sent.tokens:,}",
        )
    if any(sent.tokens > MODEL_LIMIT for sent in session.direct):
        table.caption = f"✗ a model with a window of {MODEL_LIMIT:,} tokens refuses this request"
        table.caption_justify = "left"
    return table


def _totals(session: Session, stored: Stored) -> Table:
    table = _table("The whole session", "", "without", "with")
    both = (session.direct, session.through)

    def row(name: str, *values: str) -> None:
        table.add_row(name, *values)

    row("requests", *(f"{len(sent):,}" for sent in both))
    row("largest prompt", *(f"{max(s.tokens for s in sent):,}" for sent in both))
    row("prompt tokens sent", *(f"{sum(s.tokens for s in sent):,}" for sent in both))
    row(
        "of these from the cache",
        *(f"{sum(s.cached for s in sent) / sum(s.tokens for s in sent):.1%}" for sent in both),
    )
    row("requests that missed the cache", *(f"{len(breaks(sent))}" for sent in both))
    row("trims", "", f"{len(stored.trims)}")
    row("results sent shortened", "", f"{len(stored.compressions)}")
    times = sorted(event["hook_ms"] for event in stored.usage)
    if len(times) > 1:
        row("time in the hook, median", "", f"{median(times):.1f} ms")
        row("time in the hook, 95th percentile", "", f"{quantiles(times, n=20)[18]:.1f} ms")
    return table


def _trims(session: Session, stored: Stored) -> Table:
    table = _table("Trims", "at request", "before", "after", "messages gone so far")
    for at, trim in zip(cut_places(session.through), stored.trims, strict=False):
        after = session.through[at].tokens
        table.add_row(str(at + 1), f"{trim['tokens_before']:,}", f"{after:,}", f"{trim['messages_left']:,}")
    return table


def _detail(console: Console, stored: Stored) -> None:
    console.rule("A detail that left the request, read back from the store", align="left")
    for found in stored.found:
        where = f"message {found.seq} ({found.tool_name}), line {found.line_no}, in_context = {int(found.in_context)}"
        console.print(f"“{found.text}”\n{where}\n", highlight=False)
