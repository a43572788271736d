"""What a trial says in numbers: one plain value a session, and their sum, ready for JSON.

Tokens are the provider's, shares run from 0 to 1, money is in dollars at list prices; None is what isn't known.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from openmem_hook.replay.trial import ArmFigures, RequestFigures, Trial

Figures = dict[str, Any]

CLOSE = 0.03
"""How near the simulated hit share has to be to the recorded one for its costs to count."""


def summary(trial: Trial) -> Figures:
    """The figures of one session; `prompts` has a row a request: tokens without, tokens with, trims."""
    requests, transcript = trial.requests, trial.transcript
    hook_ms = [request.hook_s * 1000 for request in requests]
    return {
        "file": transcript.path.name,
        "client": transcript.client,
        "models": list(dict.fromkeys(request.model for request in requests)),
        "requests": len(requests),
        "trims": sum(request.trims for request in requests),
        "without": _arm([request.without for request in requests]),
        "with": _arm([request.through for request in requests]),
        "cache_check": _cache_check(requests),
        "estimate_error": {
            "all": _errors(request for request in requests if request.reported_tokens is not None),
            "as_recorded": _errors(request for request in requests if request.is_comparable),
        },
        "hook_ms": {
            "median": quantile(hook_ms, 0.5),
            "p95": quantile(hook_ms, 0.95),
            "most": max(hook_ms, default=None),
        },
        "without_price": sorted({request.model for request in requests if request.through.dollars is None}),
        "counts_recorded": sum(request.reported_tokens is not None for request in requests),
        "cleared_by_client": trial.clearings,
        "skipped": dict(transcript.omissions),
        "repaired": dict(transcript.repairs),
        "prompts": [
            [round(request.without.tokens), round(request.through.tokens), request.trims] for request in requests
        ],
        "dollars": [[request.without.dollars, request.through.dollars] for request in requests],
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


def _arm(requests: Sequence[ArmFigures]) -> Figures:
    tokens, read = sum(one.tokens for one in requests), sum(one.read for one in requests)
    return {
        "tokens": round(tokens),
        "largest": round(max((one.tokens for one in requests), default=0)),
        "bytes": sum(one.bytes for one in requests),
        "read": round(read),
        "written": round(sum(one.write for one in requests)),
        "hit_share": _share(read, tokens),
        "misses": sum(one.is_miss is True for one in requests),
        "dollars": _sum_prices(one.dollars for one in requests),
        "refused": sum(bool(one.faults) for one in requests),
        "faults": sum(len(one.faults) for one in requests),
    }


def _sum(arms: Sequence[Figures]) -> Figures:
    sums = {key: sum(arm[key] for arm in arms) for key in ("tokens", "bytes", "read", "written", "misses", "refused")}
    return {
        **sums,
        "largest": max((arm["largest"] for arm in arms), default=0),
        "hit_share": _share(sums["read"], sums["tokens"]),
        "dollars": _sum_prices(arm["dollars"] for arm in arms),
    }


def _sum_prices(dollars: Iterable[float | None]) -> float | None:
    """The sum of what has a price; None where nothing has."""
    prices = [one for one in dollars if one is not None]
    return sum(prices) if prices else None


def _cache_check(requests: Sequence[RequestFigures]) -> Figures:
    """The simulated cache against the recorded one, over the requests that have cache counts."""
    with_counts = [one for one in requests if one.reported_tokens and one.reported_read is not None]
    recorded_share = _share(
        sum(one.reported_read or 0 for one in with_counts), sum(one.reported_tokens or 0 for one in with_counts)
    )
    simulated_share = _share(
        sum(one.without.read for one in with_counts), sum(one.without.tokens for one in with_counts)
    )
    close = (
        None if recorded_share is None or simulated_share is None else abs(recorded_share - simulated_share) <= CLOSE
    )
    return {"recorded": recorded_share, "simulated": simulated_share, "close": close}


def _errors(requests: Iterable[RequestFigures]) -> Figures:
    """How far the plugin's estimates were off, as a share of the prompt."""
    errors = [
        abs(one.estimate - one.through.tokens) / one.through.tokens for one in requests if one.estimate is not None
    ]
    return {"requests": len(errors), "median": quantile(errors, 0.5), "p90": quantile(errors, 0.9)}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """By linear interpolation; None of nothing."""
    if len(values) < 2:
        return next(iter(values), None)
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
