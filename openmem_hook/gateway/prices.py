"""LiteLLM's cost map: the entries of a model, and the list prices of its prompt tokens.

The map is read from the installed package's own file: importing LiteLLM takes seconds and asks the network for a newer
one. A price may have steps: a prompt longer than a step is paid at that step's prices as a whole.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

PRICE_STEP = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
"""The key of a price that holds above so many thousand tokens."""

_SELF_HOSTED = frozenset(
    (
        "hosted_vllm",
        "vllm",
        "ollama",
        "ollama_chat",
        "lm_studio",
        "llamafile",
        "xinference",
        "oobabooga",
        "triton",
    )
)
"""Providers whose windows are set by who runs them: only an entry of exactly that name counts."""

_DATE = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d|latest)$")
_BEDROCK = re.compile(r"(?:[a-z-]+\.)?anthropic\.(.+?)(?:-v\d+)?(?::\d+)?")


@cache
def shipped_costs() -> Mapping[str, Any]:
    """The cost map that the installed LiteLLM ships; empty where there is none."""
    spec = importlib.util.find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / "model_prices_and_context_window_backup.json"
        if file.is_file():
            costs = orjson.loads(file.read_bytes())
            return costs if isinstance(costs, dict) else {}
    return {}


def cost_entries(names: Sequence[str], costs: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The cost map's entries for a model of these names, the most exact first."""
    spellings = dict.fromkeys(spelling for name in names for spelling in _spellings(name))
    entries = (costs.get(spelling) for spelling in spellings)
    return tuple(entry for entry in entries if isinstance(entry, Mapping))


def _spellings(name: str) -> Iterator[str]:
    """Names under which the cost map may hold a model, the most exact first."""
    # The name as the gateway writes it, without the suffix that asks for a larger window.
    plain = name[:-4] if name.lower().endswith("[1m]") else name
    yield plain
    provider, _, rest = plain.partition("/")
    if rest and provider in _SELF_HOSTED:
        return

    # Without its providers, one after the other.
    while rest:
        yield rest
        rest = rest.partition("/")[2]

    # Without Bedrock's region and version, then without a date.
    last = plain.rpartition("/")[2]
    bedrock = _BEDROCK.fullmatch(last)
    short = bedrock[1] if bedrock else last
    yield from (short, _DATE.sub("", short))


@dataclass(frozen=True, slots=True)
class Prices:
    """What tokens of a prompt cost, in dollars a token."""

    fresh: float
    """Not in the cache, and not written to it."""

    read: float
    """Read from the cache."""

    write: float
    """Written to the cache, for five minutes where the provider tells lifetimes apart."""

    write_1h: float
    """Written to the cache for an hour."""

    above: int = 0
    """Tokens of a prompt above which these prices hold."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """What a model's prompts cost."""

    steps: tuple[Prices, ...]
    """The highest step first."""

    def cost(self, read: float, written_5m: float, written_1h: float, fresh: float) -> float:
        """Dollars for one prompt, from its tokens by what the provider's cache did with them."""
        total = read + written_5m + written_1h + fresh
        prices = next((step for step in self.steps if total > step.above), self.steps[-1])
        cost = fresh * prices.fresh
        return cost + read * prices.read + written_5m * prices.write + written_1h * prices.write_1h


def price_list(entries: Iterable[Mapping[str, Any]]) -> PriceList | None:
    """Prices in the first of these entries of the cost map that has any; None where none has."""
    entry = next((entry for entry in entries if _dollars(entry, "input_cost_per_token") is not None), None)
    if entry is None:
        return None
    matches = (PRICE_STEP.fullmatch(key) for key in entry)
    sizes = sorted((int(match[1]) for match in matches if match), reverse=True)
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
