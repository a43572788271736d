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
from demo.session import DETAIL, DemoSession, PromptUse
from demo.store_contents import StoreContents

MODEL_LIMIT = 200_000
ROWS = 8
ESTIMATE_ERROR = 0.01
"""Whether a prompt is at the limit is known before the provider counts it; see the `usage` events."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that a demo that worked shows."""

    claim: str
    holds: bool


def breaks(prompts: Sequence[PromptUse]) -> list[int]:
    """Places of requests for which the cache did not hold all of the request before."""
    return [at for at in range(1, len(prompts)) if prompts[at].cache_read < prompts[at - 1].tokens]


def cut_places(prompts: Sequence[PromptUse]) -> list[int]:
    """Places of requests that are shorter than the one before: the session only grows, so these were trimmed."""
    return [at for at in range(1, len(prompts)) if prompts[at].tokens < prompts[at - 1].tokens]


def checks(session: DemoSession, store: StoreContents, trim_at: int) -> Iterator[Check]:
    """What the demo shows. `trim_at` is its limit in tokens."""
    through = session.through
    refusal = f": {session.refusals[0]}" if session.refusals else ""
    yield Check(f"the strict provider accepted all {len(through)} requests{refusal}", not session.refusals)
    yield Check(f"the session was trimmed more than once ({len(store.trims)} times)", len(store.trims) > 1)
    largest = max(prompt.tokens for prompt in through)
    yield Check(
        f"no prompt went over {trim_at:,} tokens by more than {ESTIMATE_ERROR:.0%} (largest: {largest:,})",
        largest <= trim_at * (1 + ESTIMATE_ERROR),
    )
    misses = len(breaks(through))
    yield Check(f"the prompt cache missed at trims and nowhere else ({misses} times)", misses == len(store.trims))
    yield Check(f"one usage record a request ({len(store.usage)})", len(store.usage) == len(through))
    yield Check(
        f"every message is in the store, once ({store.messages} of {session.sent_messages})",
        store.messages == session.sent_messages,
    )
    is_absent = DETAIL not in json.dumps(session.last_body)
    yield Check("the detail is not in the last request any more", is_absent)
    matches = store.matches
    yield Check(
        "the detail was read back from the store, marked as out of context",
        len(matches) == 1 and matches[0].text == DETAIL and not matches[0].in_context,
    )


def show(console: Console, session: DemoSession, store: StoreContents, trim_at: int) -> bool:
    """Prints everything; whether all checks held."""
    console.print()
    console.rule("Prompt tokens of each request", align="left")
    console.print("[green]█[/] sent, with openmem_hook   [red]·[/] without it   [yellow]╌[/] limit of this demo\n")
    for line in chart([s.tokens for s in session.through], [s.tokens for s in session.direct], trim_at):
        console.print(line)
    console.print()
    console.print(_prompts(session))
    console.print(_totals(session, store))
    console.print(_trims(session, store))
    _detail(console, store)
    console.rule("Checks", align="left")
    results = list(checks(session, store, trim_at))
    for check in results:
        console.print(f"[green]✓[/] {check.claim}" if check.holds else f"[bold red]✗[/] {check.claim}", highlight=False)
    return all(check.holds for check in results)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=box.ROUNDED)
    table.add_column(first, min_width=10)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _prompts(session: DemoSession) -> Table:
    table = _table("Prompt size", "request", "without", "with", "from cache", "fewer")
    last = len(session.through) - 1
    for at in dict.fromkeys(round(last * step / (ROWS - 1)) for step in range(ROWS)):
        prompt, would_be = session.through[at], session.direct[at]
        over = " ✗" if would_be.tokens > MODEL_LIMIT else ""
        table.add_row(
            str(at + 1),
            f"{would_be.tokens:,}{over}",
            f"{prompt.tokens:,}",
            f"{prompt.cache_read / prompt.tokens:.0%}",
            f"{would_be.tokens - prompt.tokens:,}",
        )
    if any(prompt.tokens > MODEL_LIMIT for prompt in session.direct):
        table.caption = f"✗ a model with a window of {MODEL_LIMIT:,} tokens refuses this request"
        table.caption_justify = "left"
    return table


def _totals(session: DemoSession, store: StoreContents) -> Table:
    table = _table("The whole session", "", "without", "with")
    arms = (session.direct, session.through)

    def row(name: str, *values: str) -> None:
        table.add_row(name, *values)

    row("requests", *(f"{len(arm):,}" for arm in arms))
    row("largest prompt", *(f"{max(prompt.tokens for prompt in arm):,}" for arm in arms))
    row("prompt tokens sent", *(f"{sum(prompt.tokens for prompt in arm):,}" for arm in arms))
    row(
        "of these from the cache",
        *(f"{sum(prompt.cache_read for prompt in arm) / sum(prompt.tokens for prompt in arm):.1%}" for arm in arms),
    )
    row("requests that missed the cache", *(f"{len(breaks(arm))}" for arm in arms))
    row("trims", "", f"{len(store.trims)}")
    row("results sent shortened", "", f"{len(store.compressions)}")
    times = sorted(event["hook_ms"] for event in store.usage)
    if len(times) > 1:
        row("time in the hook, median", "", f"{median(times):.1f} ms")
        row("time in the hook, 95th percentile", "", f"{quantiles(times, n=20)[18]:.1f} ms")
    return table


def _trims(session: DemoSession, store: StoreContents) -> Table:
    table = _table("Trims", "at request", "before", "after", "messages gone so far")
    for at, trim in zip(cut_places(session.through), store.trims, strict=False):
        after = session.through[at].tokens
        table.add_row(str(at + 1), f"{trim['tokens_before']:,}", f"{after:,}", f"{trim['messages_left']:,}")
    return table


def _detail(console: Console, store: StoreContents) -> None:
    console.rule("A detail that left the request, read back from the store", align="left")
    for line in store.matches:
        where = f"message {line.seq} ({line.tool_name}), line {line.line_no}, in_context = {int(line.in_context)}"
        console.print(f"“{line.text}”\n{where}\n", highlight=False)
