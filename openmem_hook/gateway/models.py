"""What the gateway knows of a model: window, price step, its own settings block.

A name is resolved the way the router does it (aliases, groups, wildcards, teams) to its deployments; each
is looked up in what the operator wrote beside it, then in LiteLLM's cost map, read directly, because
`get_model_info` may ask a local server over the network. The smallest window among a group's deployments and
its known fallbacks bounds the request: the hook runs once, and the router may send that body to any of them.
LiteLLM is found among the loaded modules, never imported: this file runs inside the gateway or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from openmem_hook.bounded_map import BoundedMap
from openmem_hook.gateway.client_values import as_mapping
from openmem_hook.gateway.prices import PRICE_STEP, cost_entries
from openmem_hook.limits import ModelFacts, family_of

MILLION = 1_000_000
"""Window that the `[1m]` suffix of a Claude name and Anthropic's `context-1m` beta header ask for."""

_MOST_FALLBACKS = 16
"""Fallbacks of one request that are looked at, those of fallbacks included."""

_MOST_QUERIES = 512
"""Queries whose facts are remembered; a client may name anything."""

_ROUTER_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)
"""What a router of another version, or one that is being reloaded, can answer a look-up with."""


def facts_for(model: object, data: Mapping[str, Any]) -> ModelFacts:
    """Facts of the model a request names: a name, a list (the rest are fallbacks) or None (see `data`).

    Remembered until the router, its lists or the cost map change; an unknown name costs a look-up once.
    """
    query = _query(model, data)
    router = getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)
    costs = as_mapping(getattr(sys.modules.get("litellm"), "model_cost", None))
    _MEMORY.follow(router, costs)
    facts = _MEMORY.facts.get(query)
    if facts is None:
        facts = read(query, router, costs)
        _MEMORY.facts.put(query, facts)
    return facts


# --- the query -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """All of a request that a look-up depends on. Hashable."""

    name: str

    fallbacks: tuple[str, ...] | None = None
    """Names that the request itself lets stand in; None where it says nothing of them."""

    team: str | None = None
    """The authenticated team, whose models may have names of their own."""

    million: bool = False
    """Whether the client asks Anthropic for the window of a million tokens."""


def _query(model: object, data: Mapping[str, Any]) -> ModelQuery:
    # A list of models is the first one, with the rest as its fallbacks.
    value = model if model is not None else data.get("model")
    names = _names(value if isinstance(value, list | tuple) else [value])
    name = names[0] if names else ""
    fallbacks = _request_fallbacks(name, data)
    if len(names) > 1:
        fallbacks = (*names[1:], *(fallbacks or ()))

    # LiteLLM writes the team into its metadata after removing a client's own value.
    holders = (as_mapping(data.get(key)) for key in ("litellm_metadata", "metadata"))
    team = next(iter(_names(holder.get("user_api_key_team_id") for holder in holders)), None)

    headers = as_mapping(as_mapping(data.get("proxy_server_request")).get("headers"))
    million = "context-1m" in f"{headers.get('anthropic-beta')} {data.get('anthropic_beta')}"
    return ModelQuery(name, fallbacks, team, million)


def _names(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value)


def _request_fallbacks(name: str, data: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Fallbacks of the request itself, or of its key or team; LiteLLM takes the first that is there."""
    if data.get("disable_fallbacks"):
        return ()
    override = as_mapping(data.get("router_settings_override"))
    source = data.get("fallbacks") or override.get("fallbacks")
    return tuple(_fallbacks_in(source, name))[:_MOST_FALLBACKS] if source else None


def _fallbacks_in(source: object, name: str) -> Iterator[str]:
    """Names that stand in for `name`: plain names, `{"model": …}`, `{name: […]}`, else `{"*": […]}`."""
    items = source if isinstance(source, list | tuple) else [source]
    maps = [item for item in items if isinstance(item, Mapping)]
    yield from _names(items)
    yield from _names(item.get("model") for item in maps)
    bare = name.rpartition("/")[2]
    chains = [item[key] for item in maps for key in (name, bare) if key in item]
    for chain in chains or [item["*"] for item in maps if "*" in item]:
        yield from _names(chain if isinstance(chain, list | tuple) else [chain])


# --- the deployments behind a name -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Deployment:
    """One upstream of a group."""

    name: str
    """The upstream's model, with its provider."""

    info: Mapping[str, Any]
    """What the operator wrote beside it."""

    entries: tuple[Mapping[str, Any], ...]
    """The cost map's entries for it, the most exact first."""

    million: bool
    """Whether the group's or the upstream's name ends in `[1m]`."""


def read(query: ModelQuery, router: Any, costs: Mapping[str, Any]) -> ModelFacts:
    """Facts from a router (None: there is none) and a cost map."""
    group = _deployments(query.name, query.team, router, costs)
    fallbacks = [
        deployment
        for name in _all_fallbacks(query, router)
        for deployment in _deployments(name, query.team, router, costs)
    ]

    # The body has to fit whichever of them gets it.
    windows = [_window(deployment, query.million) for deployment in (*group, *fallbacks)]

    # A group with a Haiku in it is trimmed as a Haiku.
    families = [family_of(deployment.name) for deployment in group]

    # One deployment whose answers have no known bound leaves the group without one.
    outputs = [_first_count(deployment, "max_output_tokens", "max_tokens") for deployment in group]

    return ModelFacts(
        name=group[0].name,
        family="claude-haiku" if "claude-haiku" in families else families[0],
        window=min((window for window in windows if window), default=None),
        max_output=None if None in outputs else max(output for output in outputs if output),
        price_step=min((step for deployment in group for step in _price_steps(deployment)), default=None),
        openmem=next((as_mapping(d.info["openmem"]) for d in group if d.info.get("openmem")), {}),
    )


def _all_fallbacks(query: ModelQuery, router: Any) -> list[str]:
    """The fallbacks and theirs in turn: LiteLLM walks on when one fails too."""
    router_fallbacks = getattr(router, "fallbacks", None) or []
    first = query.fallbacks if query.fallbacks is not None else tuple(_fallbacks_in(router_fallbacks, query.name))
    names: list[str] = []
    queue = list(first)
    while queue and len(names) < _MOST_FALLBACKS:
        name = queue.pop(0)
        if name != query.name and name not in names:
            names.append(name)
            queue += _fallbacks_in(router_fallbacks, name)
    return names


def _deployments(name: str, team: str | None, router: Any, costs: Mapping[str, Any]) -> list[_Deployment]:
    """The upstreams behind a name; the name itself where no router knows it."""
    rows = _rows(name, team, router) if name and router is not None else []
    return [_deployment(name, row, costs) for row in rows or [{}]]


def _rows(name: str, team: str | None, router: Any) -> list[Any]:
    """Deployments of a group, alias, wildcard or team name; the registry of newer LiteLLM versions first."""
    look_ups: tuple[Callable[[], Any], ...] = (
        lambda: router.registry().deployments(name),
        lambda: router.get_model_list(model_name=name, team_id=team),
    )
    for look_up in look_ups:
        try:
            rows = list(look_up() or [])
        except _ROUTER_ERRORS:
            continue
        if rows:
            return rows
    return []


def _deployment(name: str, row: object, costs: Mapping[str, Any]) -> _Deployment:
    params, info = _part(row, "litellm_params"), _part(row, "model_info")
    upstream = _names([params.get("model")]) or (name,)
    price_names = _names([info.get("base_model"), params.get("base_model"), *upstream])
    own_prices = {key: value for key, value in params.items() if PRICE_STEP.fullmatch(key)}
    million = any(spelling.lower().endswith("[1m]") for spelling in (name, upstream[0]))
    return _Deployment(upstream[0], {**own_prices, **info}, cost_entries(price_names, costs), million)


def _part(row: object, name: str) -> Mapping[str, Any]:
    value = row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
    dump = getattr(value, "model_dump", None)
    return as_mapping(dump(exclude_none=True) if callable(dump) else value)


def _window(deployment: _Deployment, million: bool) -> int | None:
    """The operator's number counts alone. `max_tokens` is no window: in LiteLLM it means the answer's."""
    own = _count(deployment.info.get("max_input_tokens"))
    if own is not None:
        return own
    window = _first_count(deployment, "max_input_tokens")
    family = family_of(deployment.name)
    if deployment.million or (million and family.startswith("claude") and family != "claude-haiku"):
        return max(MILLION, window or 0)
    return window


def _price_steps(deployment: _Deployment) -> Iterator[int]:
    """Prompt sizes above which a token costs more, in tokens; LiteLLM writes them into the price's name."""
    for source in (deployment.info, *deployment.entries):
        matches = ((PRICE_STEP.fullmatch(str(key)), price) for key, price in source.items())
        yield from (int(match[1]) * 1000 for match, price in matches if match and price)


def _first_count(deployment: _Deployment, *keys: str) -> int | None:
    """The first of these keys that is a number of tokens: the operator's, then the cost map's."""
    counts = (_count(source.get(key)) for source in (deployment.info, *deployment.entries) for key in keys)
    return next((count for count in counts if count), None)


def _count(value: object) -> int | None:
    """A positive number of tokens, as written by hand or machine; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value < 10**12 else None


# --- the memory ------------------------------------------------------------------------------------------


class _Memory:
    """Facts that hold while router, lists and cost map are the same objects of the same length."""

    def __init__(self) -> None:
        self.facts: BoundedMap[ModelQuery, ModelFacts] = BoundedMap(_MOST_QUERIES)
        self._objects: tuple[object, ...] = ()
        self._lengths: tuple[int, ...] = ()

    def follow(self, router: Any, costs: Mapping[str, Any]) -> None:
        """Forgets everything when a model, alias, fallback or price was added or replaced."""
        lists = [getattr(router, name, None) or () for name in ("model_list", "fallbacks", "model_group_alias")]
        models = lists[0]
        newest = models[-1] if isinstance(models, list) and models else None
        objects = (router, costs, newest, *lists)
        lengths = tuple(len(one) if isinstance(one, Sized) else 0 for one in (costs, *lists))
        if lengths != self._lengths or any(a is not b for a, b in zip(objects, self._objects, strict=True)):
            self.facts, self._objects, self._lengths = BoundedMap(_MOST_QUERIES), objects, lengths


_MEMORY = _Memory()
