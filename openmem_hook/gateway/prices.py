"""List prices of a model's prompt tokens, from LiteLLM's cost map.

The map is read from the installed package's own file: importing LiteLLM takes seconds and asks the network for a newer
one. A price may have steps: a prompt longer than a step is paid at that step's prices as a whole.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

_STEP = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars a token. `above`: size in tokens of the prompts from which on they hold."""

    fresh: float
    read: float
    write: float
    write_1h: float
    above: int = 0


@dataclass(frozen=True, slots=True)
class PriceList:
    """A model's prices, the highest step first."""

    steps: tuple[Prices, ...]

    def cost(self, read: float, written_5m: float, written_1h: float, uncached: float) -> float:
        """Dollars for one prompt by what the provider's cache did with its tokens."""
        total = read + written_5m + written_1h + uncached
        prices = next((step for step in self.steps if total > step.above), self.steps[-1])
        fresh = uncached * prices.fresh
        return fresh + read * prices.read + written_5m * prices.write + written_1h * prices.write_1h


@cache
def shipped_costs() -> Mapping[str, Any]:
    """The cost map that the installed LiteLLM ships; empty where there is none."""
    spec = importlib.util.find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / "model_prices_and_context_window_backup.json"
        if file.is_file():
            found = orjson.loads(file.read_bytes())
            return found if isinstance(found, dict) else {}
    return {}


def price_list(entries: Iterable[Mapping[str, Any]]) -> PriceList | None:
    """Prices in the first of these entries of the cost map that has any."""
    entry = next((entry for entry in entries if _dollars(entry, "input_cost_per_token") is not None), None)
    if entry is None:
        return None
    found = (_STEP.fullmatch(key) for key in entry)
    sizes = sorted((int(match[1]) for match in found if match), reverse=True)
    base = _prices(entry, "", 0, None)
    return PriceList((*(_prices(entry, f"_above_{size}k_tokens", size * 1000, base) for size in sizes), base))


def _prices(entry: Mapping[str, Any], suffix: str, above: int, base: Prices | None) -> Prices:
    """What a step doesn't say costs as much more as its fresh tokens do; without a cache price it costs as fresh."""
    fresh = _dollars(entry, f"input_cost_per_token{suffix}") or 0.0
    dearer = fresh / base.fresh if base is not None and base.fresh else 1.0

    def price(key: str, usual: float) -> float:
        own = _dollars(entry, key + suffix)
        return usual if own is None else own

    read = price("cache_read_input_token_cost", fresh if base is None else base.read * dearer)
    write = price("cache_creation_input_token_cost", fresh if base is None else base.write * dearer)
    hour = price("cache_creation_input_token_cost_above_1hr", write if base is None else base.write_1h * dearer)
    return Prices(fresh, read, write, hour, above)


def _dollars(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
