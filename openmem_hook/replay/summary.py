"""What a trial says in numbers: one plain value a session, and their sum, ready for JSON.

Tokens are the provider's, shares run from 0 to 1, money is in dollars at list prices; None is what isn't known.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from openmem_hook.replay.trial import Row, Sent, Trial

Figures = dict[str, Any]

CLOSE = 0.03
"""How near the simulated hit share has to be to the recorded one for its costs to count."""


def summary(trial: Trial) -> Figures:
    """The figures of one session; `prompts` has a row a request: tokens without, tokens with, trims."""
    rows, session = trial.rows, trial.session
    return {
        "file": session.path.name,
        "client": session.client,
        "models": list(dict.fromkeys(row.model for row in rows)),
        "requests": len(rows),
        "trims": sum(row.trims for row in rows),
        "without": _way([row.without for row in rows]),
        "with": _way([row.through for row in rows]),
        "cache_check": _cache_check(rows),
        "estimate_error": {
            "all": _errors(row for row in rows if row.recorded is not None),
            "as_recorded": _errors(row for row in rows if row.compared),
        },
        "hook_ms": _times([row.hook_s * 1000 for row in rows]),
        "without_price": sorted({row.model for row in rows if row.through.dollars is None}),
        "counts_recorded": sum(row.recorded is not None for row in rows),
        "cleared_by_client": trial.cleared,
        "skipped": dict(session.skipped),
        "repaired": dict(session.repaired),
        "prompts": [[round(row.without.tokens), round(row.through.tokens), row.trims] for row in rows],
        "dollars": [[row.without.dollars, row.through.dollars] for row in rows],
    }


def total(sessions: Sequence[Figures]) -> Figures:
    """Sums over sessions."""
    return {
        "requests": sum(session["requests"] for session in sessions),
        "trims": sum(session["trims"] for session in sessions),
        "without": _sum([session["without"] for session in sessions]),
        "with": _sum([session["with"] for session in sessions]),
        "cache_close": sum(session["cache_check"]["close"] is True for session in sessions),
        "cache_checked": sum(session["cache_check"]["close"] is not None for session in sessions),
    }


def _way(sent: Sequence[Sent]) -> Figures:
    tokens, read = sum(one.tokens for one in sent), sum(one.read for one in sent)
    faults = [fault for one in sent for fault in one.faults]
    return {
        "tokens": round(tokens),
        "largest": round(max((one.tokens for one in sent), default=0)),
        "bytes": sum(one.bytes for one in sent),
        "read": round(read),
        "written": round(sum(one.written for one in sent)),
        "hit_share": _share(read, tokens),
        "misses": sum(one.missed is True for one in sent),
        "dollars": _priced(one.dollars for one in sent),
        "refused": sum(bool(one.faults) for one in sent),
        "faults": len(faults),
    }


def _sum(ways: Sequence[Figures]) -> Figures:
    added = {key: sum(way[key] for way in ways) for key in ("tokens", "bytes", "read", "written", "misses", "refused")}
    return {
        **added,
        "largest": max((way["largest"] for way in ways), default=0),
        "hit_share": _share(added["read"], added["tokens"]),
        "dollars": _priced(way["dollars"] for way in ways),
    }


def _priced(dollars: Iterable[float | None]) -> float | None:
    """The sum of what has a price; None where nothing has."""
    known = [one for one in dollars if one is not None]
    return sum(known) if known else None


def _cache_check(rows: Sequence[Row]) -> Figures:
    """The simulated cache against the recorded one, over the requests that have cache counts."""
    told = [row for row in rows if row.recorded and row.recorded_read is not None]
    recorded = _share(sum(row.recorded_read or 0 for row in told), sum(row.recorded or 0 for row in told))
    simulated = _share(sum(row.without.read for row in told), sum(row.without.tokens for row in told))
    close = None if recorded is None or simulated is None else abs(recorded - simulated) <= CLOSE
    return {"recorded": recorded, "simulated": simulated, "close": close}


def _errors(rows: Iterable[Row]) -> Figures:
    errors = [abs(row.estimate - row.through.tokens) / row.through.tokens for row in rows if row.estimate is not None]
    return {"requests": len(errors), "median": quantile(errors, 0.5), "p90": quantile(errors, 0.9)}


def _times(found: Sequence[float]) -> Figures:
    return {"median": quantile(found, 0.5), "p95": quantile(found, 0.95), "most": max(found, default=None)}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """By linear interpolation; None of nothing."""
    if len(values) < 2:
        return next(iter(values), None)
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
