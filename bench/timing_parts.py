"""The page's parts about estimates, time, load, and what the project promises."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.markdown import NOTHING, number, share, table

Row = Mapping[str, Any]
Rows = Sequence[Row]
Result = Mapping[str, Any]

PROMISED = ("speed", "gateway", "load", "search", "store", "memory")
"""Sections whose figures are all there is to them."""

RATES = ("cut_cold", "cut_carried")

# --- estimates ----------------------------------------------------------------------------------------------


def graded(held: Result) -> Iterator[str]:
    yield _GRADED
    rows: Rows = held["rows"]
    yield table(
        ("next request, mean error", "sessions", "requests", "cold", "carried", "with the answer's own count"),
        [
            (row["family"], row["sessions"], row["next_n"], *map(_error, _next_errors(row)))
            for row in rows
            if row["next_n"]
        ],
    )
    yield table(
        ("after a cut, median (90th) error", "cuts", "measured growth", "learned rate, cold", "learned rate, carried"),
        [
            (
                row["family"],
                f"{row['cut_n']:,}",
                *(_cut_error(row, way) for way in ("growth", "cut_cold", "cut_carried")),
            )
            for row in rows
            if row["cut_n"]
        ],
    )


def _next_errors(row: Row) -> list[float | None]:
    return [row["next_cold"], row["next_carried"], row["next_answer"]]


def _cut_error(row: Row, way: str) -> str:
    return f"{_error(row[f'{way}_p50'])} ({_error(row[f'{way}_p90'])})"


def _error(per_cent: float | None) -> str:
    return NOTHING if per_cent is None else f"{per_cent:.2f} %"


# --- peers --------------------------------------------------------------------------------------------------


def peers(held: Result) -> Iterator[str]:
    made, cells = held["made"], _cells(held)
    yield _PEERS.format(window=made["window"], cut_off=number(made["cut_off_s"]))
    yield from _left_out(made)
    yield from _by_size(cells, "in process: median (95th) of a request", _prefix, ("bytes of it kept",))
    sizes, ways = _sizes(cells), _ways(cells)
    yield table(
        (
            "",
            "memory at the start",
            *(f"at {size:g} MB" for size in sizes),
            *(f"on disk, {size:g} MB" for size in sizes),
        ),
        [(way, *_memory(cells, way, sizes)) for way in ways],
    )


def _by_size(
    cells: Rows, title: str, over_all: Callable[[Rows, str], tuple[str, ...]], columns: Sequence[str]
) -> Iterator[str]:
    """Two tables, a way a line: times at each size; what was sent on, then what `over_all` says of all sizes."""
    sizes, ways = _sizes(cells), _ways(cells)
    yield table(
        (title, *(f"{size:g} MB" for size in sizes)),
        [(way, *(_time(_cell(cells, way, size)) for size in sizes)) for way in ways],
    )
    yield table(
        ("", *(f"sent on at {size:g} MB" for size in sizes), "steps that kept the prefix", *columns),
        [
            (way, *(share(_cell(cells, way, size)["sent_share"]) for size in sizes), *over_all(cells, way))
            for way in ways
        ],
    )


def _ways(cells: Rows) -> list[str]:
    return list(dict.fromkeys(row["way"] for row in cells))


def _cells(held: Result) -> Rows:
    return [row for row in held["rows"] if row.get("kind", "cell") == "cell"]


def _sizes(cells: Rows) -> list[float]:
    return list(dict.fromkeys(row["mb"] for row in cells))


def _cell(cells: Rows, way: str, size: float) -> Row:
    return next(row for row in cells if (row["way"], row["mb"]) == (way, size))


def _time(row: Row) -> str:
    """With how it ended, where it did."""
    ended = row["ended"]
    if not row["calls"]:
        return ended or NOTHING
    said = f"{number(row['median_ms'])} ms ({number(row['p95_ms'])})"
    return f"{said}, {ended} after {row['calls']}" if ended else said


def _prefix(cells: Rows, way: str) -> tuple[str, str]:
    """Over all sizes."""
    own = [row for row in cells if row["way"] == way and row["steps"]]
    steps, whole = (sum(row[key] for row in own) for key in ("steps", "steps_kept"))
    kept = sum(row["bytes_kept_share"] * row["steps"] for row in own) / steps if steps else None
    return f"{whole} of {steps}", share(kept)


def _memory(cells: Rows, way: str, sizes: Sequence[float]) -> Iterator[str]:
    own = [_cell(cells, way, size) for size in sizes]
    yield number(own[0]["started_mb"], "MB")
    yield from (number(row["resident_mb"], "MB") for row in own)
    for row in own:
        stored = row["stored_bytes"]
        yield NOTHING if stored is None else number(stored / 1e6, "MB")


def _left_out(made: Mapping[str, Any]) -> Iterator[str]:
    if made["left_out"]:
        left_out = "; ".join(f"{way} ({why})" for way, why in made["left_out"].items())
        yield textwrap.fill(f"Not measured: {left_out}.", 120) + "\n"


# --- through the gateway ------------------------------------------------------------------------------------


def roundtrips(held: Result) -> Iterator[str]:
    made, cells = held["made"], _cells(held)
    yield _ROUNDTRIPS.format(rounds=made["rounds"], cut_off=number(made["cut_off_s"]))
    yield from _left_out(made)
    title = "through the gateway: median (95th) of a round trip"
    yield from _by_size(cells, title, _held_by, ("memory", "on disk"))


def _held_by(cells: Rows, way: str) -> tuple[str, str, str]:
    own = [row for row in cells if row["way"] == way]
    done = [row for row in own if row["calls"]]
    steps, whole = (sum(row[key] for row in own) for key in ("steps", "steps_kept"))
    memory = done[-1]["resident_mb"] if done else None
    return f"{whole} of {steps}", number(memory, "MB"), number(own[-1]["stored_bytes"] / 1e6, "MB")


# --- load ---------------------------------------------------------------------------------------------------


def crowd(held: Result) -> Iterator[str]:
    made = held["made"]
    pause = next(seconds for seconds in made["paces_s"].values() if seconds)
    yield _CROWD.format(
        sessions=made["sessions"],
        seconds=number(made["seconds"]),
        pause=number(pause),
        trim=f"{made['trim_at_tokens']:,}",
        mean=number(held["rows"][0]["mean_kb"]),
    )
    head = ("requests a second", "p50", "p99", "slowest", "errors", "passed untouched", "loop gap, p99", "largest")
    yield table(
        ("", *head, "trims", "memory"),
        [
            (
                f"{row['way']}, {row['pace']}",
                number(row["a_second"]),
                *(number(row[key], "ms") for key in ("p50_ms", "p99_ms", "slowest_ms")),
                row["errors"],
                row["fail_opens"],
                number(row["gap_p99_ms"], "ms"),
                number(row["gap_ms"], "ms"),
                row["trims"],
                number(row["resident_mb"], "MB"),
            )
            for row in held["rows"]
        ],
    )


# --- promises -----------------------------------------------------------------------------------------------


def promises(results: Mapping[str, Result]) -> Iterator[str]:
    shown = [results[name] for name in PROMISED if name in results]
    if shown:
        yield _PROMISES
    for held in shown:
        yield f"**{held['section'].capitalize()}**: {held['about']}.\n"
        yield table(("", "measured", "promised", ""), [_promise(row) for row in held["rows"]])


def _promise(row: Row) -> tuple[str, str, str, str]:
    measured = number(row["value"], row["unit"])
    if row["at_most"] is None:
        return row["name"], measured, "", ""
    return (
        row["name"],
        measured,
        f"at most {number(row['at_most'], row['unit'])}",
        "kept" if row["met"] else "**missed**",
    )


# --- answers ------------------------------------------------------------------------------------------------


def answers(results: Mapping[str, Result]) -> Iterator[str]:
    """What a user wants to know, a line each."""
    speed = [*_speed(results), *_round_trip(results)]
    if speed:
        yield " ".join(speed)
    cost = [*_load(results), *_estimates(results)]
    if cost:
        yield " ".join(cost)


def _speed(results: Mapping[str, Result]) -> Iterator[str]:
    if "peers" not in results:
        return
    cells = _cells(results["peers"])
    size = _middle(cells)
    own = _cell(cells, "openmem", size)
    others = [
        f"{row['way']} {number(row['median_ms'])} ms"
        for row in cells
        if row["mb"] == size and row["way"] not in ("openmem", "no hook") and row["calls"]
    ]
    yield (
        f"On a request of {size:g} MB the hook takes {number(own['median_ms'])} ms and sends on "
        f"{share(own['sent_share'])} of it ({', '.join(others)})."
    )


def _round_trip(results: Mapping[str, Result]) -> Iterator[str]:
    if "roundtrips" not in results:
        return
    cells = _cells(results["roundtrips"])
    size = _middle(cells)
    with_, without = (_cell(cells, way, size)["median_ms"] for way in ("openmem", "no hook"))
    yield f"Through the gateway, {size:g} MB there and back take {number(with_)} ms, {number(without)} ms without it."


def _middle(cells: Rows) -> float:
    sizes = _sizes(cells)
    return sizes[len(sizes) // 2]


def _load(results: Mapping[str, Result]) -> Iterator[str]:
    if "crowd" not in results:
        return
    held = results["crowd"]
    paced = {row["way"]: row for row in held["rows"] if row["pace"] == "with pauses"}
    own, none = paced["openmem"], paced["no hook"]
    yield (
        f"{held['made']['sessions']} sessions at once: half of the answers within {number(own['p50_ms'])} ms and 99 of "
        f"100 within {number(own['p99_ms'])} ms, {number(none['p50_ms'])} and {number(none['p99_ms'])} without the "
        f"plugin; {own['errors']} errors."
    )


def _estimates(results: Mapping[str, Result]) -> Iterator[str]:
    if "graded" not in results:
        return
    rows: Rows = results["graded"]["rows"]
    next_ = [row["next_cold"] for row in rows if row["next_n"]]
    cuts = [row["growth_p50"] for row in rows if row["cut_n"]]
    after = f", and by {_span(cuts)} at the median after a cut" if cuts else ""
    yield f"A prompt's size is misjudged by {_span(next_)} on average for the next request{after}, by model."


def _span(values: Sequence[float]) -> str:
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{least} %" if least == most else f"{least} to {most} %"


# --- words --------------------------------------------------------------------------------------------------

_GRADED = """\
## How far off the estimates are

The plugin trims by its own estimate of a prompt's tokens. Graded against what providers reported in recorded sessions
of Claude Code and Codex. *Next request*: the last report on the same branch, and the learned rate for what is new.
*After a cut*, which no provider counted: for each request of at least 95,000 tokens, every earlier point from which on
25 to 55 % of it would be left; the size of that rest is estimated from reports before it, every fifth withheld. *Cold*
starts from built-in constants, *carried* from what the other sessions of the same model taught.
"""

_PEERS = """\
## Time and cost of a request, beside the peers

One session of tool exchanges grows to the size; each way, in a process of its own, gets every request in turn, and
who is first changes from request to request. At each size its last {window} requests, one after the other, are
measured; before them a sample of all earlier ones, which makes the chart. Parsing is outside of the measured time. A
way that needs over {cut_off} s for a size, or for one call, is cut off; one whose process ends by itself failed. *No
hook* is the floor: a process that gives back what came. All that have a threshold have 125,000 tokens. *Sent on*: of
the bytes that came, the system prompt and tools included. *Prefix*: whether all messages sent before were sent again
unchanged, in front, which is what a provider's cache pays for; between the sizes a step skips some of the client's
requests. The plugin writes all that leaves to a database that can be searched; openlcm stores too, but ran without
the model that it wants for its summaries, Headroom without those of its proxy. All got the requests as Claude Code
sends them, with a cache breakpoint on the newest message, before which LiteLLM's compression leaves all as it is. The
processes of *openmem* and *LiteLLM compress* hold LiteLLM itself, which a gateway has in memory anyway.

![Time of a request by its size](benchmarks/peers.svg)
"""

_ROUNDTRIPS = """\
## The same through the gateway

Each way has a LiteLLM gateway of its own with one worker, before the same simulated provider, and is asked in turn. A
peer that is a hook runs in its gateway; one that is a proxy (CliffCompaction, Kompact) stands between its gateway and
the provider, and its memory is counted with the gateway's. At each size {rounds} round trips after one that warms up;
over {cut_off} s for a size, or for one request, a way is cut off. A status is the provider's refusal.
"""

_CROWD = """\
## Many sessions at once

{sessions} agents, each with a session of its own, for {seconds} s through one gateway with one worker: requests of
{mean} KB in the mean, each an exchange longer than the one before; the plugin trims at {trim} tokens. With pauses of
{pause} s in the mean, as tools make them, and without any. Gateway, provider and agents share the machine. *Passed
untouched*: requests that the plugin let through without its work. *Loop gap*: time in which the gateway's event loop
did not turn.
"""

_PROMISES = """\
## What the project promises

Figures with a target, as `make bench` checks them.
"""
