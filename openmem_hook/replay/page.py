"""One page of HTML with its charts inside: nothing is loaded from anywhere. Readable in black and white.

File and model names are the only words that come from outside, and stand only in escaped HTML, never in a chart.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from openmem_hook import __version__
from openmem_hook.replay.show import amount, change, comparison, label, money, name, percent, remarks
from openmem_hook.replay.summary import Figures

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ccc; font-weight: normal; }
th:first-child { text-align: left; } thead th { border-bottom: 2px solid #111; }
.wide { overflow-x: auto; font-size: .85rem; }
svg { max-width: 100%; height: auto; } .big { font-size: 1.1rem; } small { color: #444; }
"""
_WITHOUT: dict[str, Any] = {"color": "0.45", "linestyle": (0, (4, 2)), "linewidth": 1.2}
_WITH: dict[str, Any] = {"color": "black", "linestyle": "-", "linewidth": 1.6}


def page(sessions: Sequence[Figures], total: Figures) -> str:
    """The whole document."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width"><title>openmem replay</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>What openmem_hook {escape(__version__)} would have done</h1>",
        f'<p class="big">{_headline(sessions, total)}</p>',
        _table(("", "without", "with openmem", "change"), comparison(sessions, total)),
        f'<div class="wide">{_table(_EACH, map(_cells, sessions))}</div>',
        *(f"<p><small>{escape(line)}</small></p>" for line in remarks(sessions, total)),
        *(_session(at, one) for at, one in enumerate(sessions)),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _headline(sessions: Sequence[Figures], total: Figures) -> str:
    before, after = total["without"], total["with"]
    count = f"{len(sessions)} session{'s' if len(sessions) > 1 else ''}"
    cost = f", prompts cost {change(before['dollars'], after['dollars'])}" if after["dollars"] is not None else ""
    return (
        f"{count}, {total['requests']:,} requests, {total['trims']:,} trims: "
        f"{change(before['tokens'], after['tokens'])} tokens sent{cost}; the largest prompt was "
        f"{amount(after['largest'])} tokens instead of {amount(before['largest'])}."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are escaped here; the first of a row names it."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


_EACH = (
    *("session", "requests", "trims", "largest prompt without", "with", "tokens sent without", "with"),
    *("cost without", "with", "cache hits recorded", "simulated", "with", "estimate off by, median", "90th"),
    *("hook ms, median", "95th"),
)


def _cells(one: Figures) -> tuple[str, ...]:
    before, after, check = one["without"], one["with"], one["cache_check"]
    sure = check["close"] is True
    errors, took = one["estimate_error"]["all"], one["hook_ms"]
    return (
        label(one["file"], 30),
        f"{one['requests']:,}",
        f"{one['trims']:,}",
        *(amount(way["largest"]) for way in (before, after)),
        *(amount(way["tokens"]) for way in (before, after)),
        *(money(way["dollars"], sure) for way in (before, after)),
        *(percent(share) for share in (check["recorded"], check["simulated"], after["hit_share"])),
        *(percent(errors[at]) for at in ("median", "p90")),
        *(f"{took[at]:.1f}" for at in ("median", "p95")),
    )


def _session(at: int, one: Figures) -> str:
    models = ", ".join(name(model, 60) for model in one["models"])
    parts = [f"<h2>{escape(name(one['file'], 120))}</h2>", f"<p>{escape(one['client'])}, {escape(models)}</p>"]
    without, through = [row[0] for row in one["prompts"]], [row[1] for row in one["prompts"]]
    trims = [place for place, row in enumerate(one["prompts"]) if row[2]]
    parts.append(_chart(f"{at}-prompts", "prompt tokens", without, through, trims))
    if one["with"]["dollars"] is not None:
        before, after = (list(accumulate(row[way] or 0.0 for row in one["dollars"])) for way in (0, 1))
        parts.append(_chart(f"{at}-cost", "dollars paid so far for prompts", before, after, trims))
    return "\n".join(parts)


def _chart(salt: str, what: str, without: Sequence[float], through: Sequence[float], trims: Sequence[int]) -> str:
    """Two lines over the requests, named at their ends, a tick where the plugin trimmed. As an SVG element."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 9}):
        figure = Figure(figsize=(8.6, 2.6), layout="constrained")
        axes = figure.add_subplot()
        for values, style in ((without, _WITHOUT), (through, _WITH)):
            axes.plot(range(1, len(values) + 1), values, **style)
        axes.plot([place + 1 for place in trims], [through[place] for place in trims], "kv", markersize=4)
        for values, label, place in _labels(without, through):
            axes.annotate(label, (len(values), values[-1]), (6, place), textcoords="offset points", va="center")
        axes.set(title=what, xlabel="request", ylim=(0, None))
        axes.title.set(fontsize=10, ha="left", position=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]


def _labels(without: Sequence[float], through: Sequence[float]) -> list[tuple[Sequence[float], str, int]]:
    """Names at the lines' ends, moved apart where the lines end together."""
    most = max(*without, *through, 1e-9)
    apart = abs(without[-1] - through[-1]) / most > 0.12
    up = 0 if apart else 6
    sign = 1 if without[-1] >= through[-1] else -1
    return [(without, "without", up * sign), (through, "with openmem", -up * sign)]


def _short(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 1000 else f"{value:g}"
