"""The charts of docs/benchmarks.md, drawn from its results. Readable in black and white, ways named at their lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.markdown import plural

STYLES: Mapping[str, dict[str, Any]] = {
    "openmem, with search": {"color": "black", "linestyle": "-", "marker": "o"},
    "openmem, with SQL": {"color": "black", "linestyle": "-", "marker": "s", "fillstyle": "none"},
    "openmem, context only": {"color": "black", "linestyle": (0, (4, 2)), "marker": "v"},
    "keep everything": {"color": "0.4", "linestyle": "-.", "marker": "x"},
    "tail only": {"color": "0.4", "linestyle": ":", "marker": "^"},
    "CliffCompaction": {"color": "0.4", "linestyle": (0, (1, 1)), "marker": "d"},
}
PEERS: Mapping[str, dict[str, Any]] = {
    "openmem": {"color": "black", "linestyle": "-", "marker": "o", "linewidth": 2.0},
    "CliffCompaction": {"color": "0.4", "linestyle": (0, (1, 1)), "marker": "d"},
    "distil": {"color": "0.4", "linestyle": "-.", "marker": "x"},
    "LiteLLM compress": {"color": "0.4", "linestyle": ":", "marker": "^"},
    "Kompact": {"color": "0.55", "linestyle": (0, (5, 1)), "marker": "v", "fillstyle": "none"},
    "Headroom": {"color": "0.55", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "s", "fillstyle": "none"},
    "openlcm": {"color": "0.2", "linestyle": (0, (4, 2)), "marker": "*"},
}
FAMILIES = (("R", "key-value"), ("O", "key-value, overwritten"), ("L", "log triage"))
GAP = 6.5
"""Least distance of two names at the lines' ends, in points of the score."""


def draw(results: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 9}):
        if "recall" in results:
            _save(_recall(results["recall"]["rows"]), folder / "recall.svg")
        if "needed" in results:
            _save(_needed(results["needed"]["rows"]), folder / "needed.svg")
        if "peers" in results:
            _save(_peers(results["peers"]["rows"]), folder / "peers.svg")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _recall(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (letter, title) in zip(figure.subplots(1, 3, sharey=True), FAMILIES, strict=True):
        chosen = [row for row in rows if _family(row["task"]) == letter]
        tasks = list(dict.fromkeys(row["task"] for row in chosen))
        ends: list[tuple[float, str]] = []
        for arm, style in STYLES.items():
            scores = [_score(row) for row in chosen if row["arm"] == arm]
            axes.plot(range(len(scores)), scores, markersize=4, linewidth=1.3, **style)
            ends.append((scores[-1], arm))
        for place, names in _apart(ends, 104, GAP):
            axes.annotate(names, (len(tasks) - 1, place), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
        axes.set_xticks(range(len(tasks)), [task.split()[0] for task in tasks], fontsize=7)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylim(-4, 104)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("right answers, %")
    return figure


def _family(task: str) -> str:
    return "O" if task.endswith("overwritten") else task[0]


def _score(row: Mapping[str, Any]) -> float:
    scores = (row["lookups"], row["counts"])
    return 100 * sum(one["strict"] for one in scores) / sum(one["asked"] for one in scores)


def _apart(ends: Sequence[tuple[float, str]], top: float, gap: float) -> list[tuple[float, str]]:
    """Names at heights that don't touch, from the bottom up."""
    placed: list[tuple[float, str]] = []
    for height, name in sorted(ends):
        least = placed[-1][0] + gap if placed else height
        placed.append((max(height, least), name))
    over = max(placed[-1][0] - top, 0.0)
    return [(height - over if height + gap > top - gap * len(placed) else height, name) for height, name in placed]


def _peers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Both axes logarithmic: the ways differ a thousandfold."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel="request, MB", ylabel="time of a call, ms")
    ends: list[tuple[float, str]] = []
    last: dict[str, float] = {}
    for way, style in PEERS.items():
        points = [(row["mb"], row["median_ms"]) for row in rows if row["kind"] == "curve" and row["way"] == way]
        if points:
            sizes, taken = zip(*points, strict=True)
            axes.plot(sizes, taken, markersize=3.5, **{"linewidth": 1.2, **style})
            ends.append((math.log10(taken[-1]), way))
            last[way] = sizes[-1]
    right = max(last.values())
    for height, way in _apart(ends, math.inf, 0.16):
        stopped = "" if last[way] > 0.9 * right else f" (cut off after {last[way]:.1f} MB)"
        axes.annotate(f"{way}{stopped}", (right * 1.08, 10**height), va="center", fontsize=7.5)
        end = next(10**own for own, name in ends if name == way)
        axes.plot((last[way], right * 1.06), (end, 10**height), color="0.75", linewidth=0.5)
    axes.set_xlim(right=right * 2.2)
    axes.xaxis.set_major_formatter(_plain)
    axes.yaxis.set_major_formatter(_plain)
    axes.grid(visible=True, color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _plain(value: float, _: int) -> str:
    return f"{value:,.10g}"


def _needed(rows: Sequence[Mapping[str, Any]]) -> Figure:
    ways = (
        ("summary", "client's\nsummary", "0.75"),
        ("ours", "our\nrequest", "0.45"),
        ("search_all", "one search,\nall roles", "black"),
    )
    kinds = list(rows[0]["needed"])
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.add_subplot()
    for at, (way, said, shade) in enumerate(ways):
        shares = []
        for group in ([kind] for kind in kinds):
            needed = sum(row["needed"][kind] for row in rows for kind in group)
            shares.append(100 * sum(row[way][kind] for row in rows for kind in group) / max(needed, 1))
        places = [place + (at - 1) * 0.27 for place in range(len(kinds))]
        bars = axes.bar(places, shares, 0.25, color=shade, edgecolor="black", linewidth=0.6)
        axes.bar_label(bars, [f"{said}\n{share:.0f} %" for share in shares], fontsize=6.5, padding=2)
    axes.set_xticks(range(len(kinds)), [plural(kind) for kind in kinds])
    axes.set(ylim=(0, 125), yticks=range(0, 101, 20), ylabel="of the details, %")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
