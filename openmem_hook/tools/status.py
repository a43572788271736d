"""`context_status`: what context management did lately, from the events of the tenant's catalog. Unknown is null, never
zero."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any

from openmem_hook import __version__
from openmem_hook.store.database import read_only
from openmem_hook.store.search import tenant
from openmem_hook.store.search.tenant import EventRow
from openmem_hook.tools import arguments
from openmem_hook.tools.answers import format_moment
from openmem_hook.tools.tool import Call, Tool

NEWEST_ERRORS = 5
COMMONEST_LAYOUTS = 5
_SUMS = ("prompt_tokens", "output_tokens", "cache_read", "cache_write", "cache_write_1h")


async def _answer(call: Call) -> str:
    hours = arguments.read_whole(call.arguments, "hours", 24, 1, 720)
    rows: Iterable[Sequence[Any]] = ()
    with suppress(FileNotFoundError):  # nothing happened yet
        async with read_only(call.catalog_path) as db:
            rows = await tenant.read_events_since(db, call.now - hours * 3600)
    return await call.run_in_worker(lambda: summarise(tenant.parse_events(rows), hours))


def summarise(events: Sequence[EventRow], hours: int, installed_version: str | None = None) -> str:
    """The answer as JSON. `installed_version`: the version on disk, None to look for it."""
    kinds = Counter(event.kind for event in events)
    usage = [event.data for event in events if event.kind == "usage"]
    failures = [event for event in events if event.kind == "fail_open"]
    installed_version = installed_version or _find_installed_version()
    fields = {
        "hours": hours,
        "trims": kinds["trim"],
        "compressions": kinds["compression"],
        "forced": kinds["forced"],
        "nothing_to_trim": kinds["nothing_to_trim"],
        "tokens_saved": _sum(usage, "saved") or 0,
        "fail_opens": kinds["fail_open"],
        "newest_errors": [
            {"at": format_moment(event.created_at), "error": event.data.get("error")}
            for event in reversed(failures[-NEWEST_ERRORS:])
        ],
        "requests": len(usage),
        "usage": {name: _sum(usage, name) for name in _SUMS},
        "hit_ratio": _compute_hit_ratio(usage),
        "cache_writes": {
            "on_new_cuts": _sum((u for u in usage if u.get("new_cut")), "cache_write"),
            "others": _sum((u for u in usage if not u.get("new_cut")), "cache_write"),
        },
        "breakpoints": _count_breakpoints(usage),
        "layouts": _count_layouts(usage),
        "version_running": __version__,
        "version_installed": installed_version,
        "stale": installed_version != __version__,
    }
    return json.dumps(fields, ensure_ascii=False, indent=1)


def _sum(usage: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """None where no request has this number."""
    numbers = [data[name] for data in usage if isinstance(data.get(name), int | float)]
    return round(sum(numbers)) if numbers else None


def _compute_hit_ratio(usage: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of prompt tokens read from the provider's cache, over the requests with cache counts."""
    counts = [
        (data["cache_read"], data["prompt_tokens"])
        for data in usage
        if isinstance(data.get("cache_read"), int) and isinstance(data.get("prompt_tokens"), int)
    ]
    prompt = sum(prompt for _, prompt in counts)
    return round(sum(read for read, _ in counts) / prompt, 4) if prompt else None


def _count_breakpoints(usage: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many requests had so many cache breakpoints."""
    counts = Counter(len(str(data.get("layout") or "").split()) for data in usage)
    return {str(number): counts[number] for number in sorted(counts)}


def _count_layouts(usage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    counts = Counter(str(data.get("layout") or "none") for data in usage)
    return [{"layout": layout, "requests": count} for layout, count in counts.most_common(COMMONEST_LAYOUTS)]


def _find_installed_version() -> str:
    """The version on disk now; a gateway that was not restarted after an update still runs the older one."""
    try:
        return metadata.version("openmem-hook")
    except metadata.PackageNotFoundError:
        return __version__


TOOL = Tool(
    name="context_status",
    description="What context management did for you lately: trims, tokens saved, cache use, failures, versions.",
    properties={
        "hours": {"type": "integer", "minimum": 1, "maximum": 720, "description": "How far back; default 24"},
    },
    answer=_answer,
)
