"""What `context_status` tells, from the events of the tenant's catalog. Unknown is null, never zero."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from openmem_hook import __version__
from openmem_hook.tools.answers import moment

NEWEST_ERRORS = 5
COMMONEST_LAYOUTS = 5
_SUMS = ("prompt_tokens", "output_tokens", "cache_read", "cache_write", "cache_write_1h")

Row = tuple[str, float, Mapping[str, Any]]
"""Kind, when (seconds since 1970), data."""


def status(rows: Sequence[Row], hours: int, installed: str | None = None) -> str:
    kinds = Counter(kind for kind, _, _ in rows)
    usage = [data for kind, _, data in rows if kind == "usage"]
    failures = [(at, data) for kind, at, data in rows if kind == "fail_open"]
    installed = installed or _installed()
    told = {
        "hours": hours,
        "trims": kinds["trim"],
        "compressions": kinds["compression"],
        "forced": kinds["forced"],
        "nothing_to_trim": kinds["nothing_to_trim"],
        "tokens_saved": _sum(usage, "saved") or 0,
        "fail_opens": kinds["fail_open"],
        "newest_errors": [
            {"at": moment(at), "error": data.get("error")} for at, data in reversed(failures[-NEWEST_ERRORS:])
        ],
        "requests": len(usage),
        "usage": {name: _sum(usage, name) for name in _SUMS},
        "hit_ratio": _hit_ratio(usage),
        "cache_writes": {
            "on_new_cuts": _sum((u for u in usage if u.get("new_cut")), "cache_write"),
            "others": _sum((u for u in usage if not u.get("new_cut")), "cache_write"),
        },
        "breakpoints": _breakpoints(usage),
        "layouts": _layouts(usage),
        "version_running": __version__,
        "version_installed": installed,
        "stale": installed != __version__,
    }
    return json.dumps(told, ensure_ascii=False, indent=1)


def _sum(usage: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """None where no request has this number."""
    known = [data[name] for data in usage if isinstance(data.get(name), int | float)]
    return round(sum(known)) if known else None


def _hit_ratio(usage: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of prompt tokens read from the provider's cache, over the requests with cache counts."""
    known = [
        data for data in usage if isinstance(data.get("cache_read"), int) and isinstance(data.get("prompt_tokens"), int)
    ]
    prompt = sum(data["prompt_tokens"] for data in known)
    return round(sum(data["cache_read"] for data in known) / prompt, 4) if prompt else None


def _breakpoints(usage: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many requests had so many cache breakpoints."""
    counts = Counter(len(str(data.get("layout") or "").split()) for data in usage)
    return {str(number): counts[number] for number in sorted(counts)}


def _layouts(usage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    counts = Counter(str(data.get("layout") or "none") for data in usage)
    return [{"layout": layout, "requests": count} for layout, count in counts.most_common(COMMONEST_LAYOUTS)]


def _installed() -> str:
    """The version on disk now; a gateway that was not restarted after an update still runs the older one."""
    try:
        return metadata.version("openmem-hook")
    except metadata.PackageNotFoundError:
        return __version__
