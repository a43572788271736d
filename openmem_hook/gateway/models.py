"""What the gateway knows of a model: window, price step, its own settings block.

A name is resolved the way the router does it (aliases, groups, wildcards, teams) to its deployments; each
is looked up in what the operator wrote beside it, then in LiteLLM's cost map, read directly, because
`get_model_info` may ask a local server over the network. The smallest window among a group's deployments and
its known fallbacks bounds the request: the hook runs once, and the router may send that body to any of them.
LiteLLM is found among the loaded modules, never imported: this file runs inside the gateway or not at all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from openmem_hook.limits import ModelFacts, family_of

MILLION = 1_000_000
"""Window that the `[1m]` suffix of a Claude name and Anthropic's `context-1m` beta header ask for."""

_MOST_FALLBACKS = 16
_MOST_REMEMBERED = 512
_NEVER_REACHED = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)
"""What a router of another version, or one that is being reloaded, can answer a look-up with."""


def facts_for(model: object, data: Mapping[str, Any]) -> ModelFacts:
    """Facts of the model a request names: a name, a list (the rest are fallbacks) or None (see `data`).

    Remembered until the router, its lists or the cost map change; an unknown name costs a look-up once.
    """
    asked = _asked(model, data)
    router, costs = _litellm()
    _REMEMBERED.follow(router, costs)
    known = _REMEMBERED.facts.get(asked)
    if known is None:
        known = read(asked, router, costs)
        _REMEMBERED.keep(asked, known)
    return known


def _litellm() -> tuple[Any, Mapping[str, Any]]:
    router = getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)
    costs = getattr(sys.modules.get("litellm"), "model_cost", None)
    return router, costs if isinstance(costs, Mapping) else {}


# --- what is asked ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """What a look-up depends on, hashable. `fallbacks` is None where the request says nothing of them."""

    name: str
    fallbacks: tuple[str, ...] | None = None
    team: str | None = None
    million: bool = False


def _asked(model: object, data: Mapping[str, Any]) -> Asked:
    given = model if model is not None else data.get("model")
    names = _names(given if isinstance(given, list | tuple) else [given])
    name = names[0] if names else ""
    fallbacks = _request_fallbacks(name, data)
    if len(names) > 1:
        fallbacks = (*names[1:], *(fallbacks or ()))
    return Asked(name, fallbacks, _team(data), _asks_for_million(data))


def _names(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value)


def _team(data: Mapping[str, Any]) -> str | None:
    """The authenticated team, which LiteLLM writes into its metadata after removing a client's own value."""
    holders = (_mapping(data.get(name)) for name in ("litellm_metadata", "metadata"))
    return next(iter(_names(holder.get("user_api_key_team_id") for holder in holders)), None)


def _asks_for_million(data: Mapping[str, Any]) -> bool:
    headers = _mapping(_mapping(data.get("proxy_server_request")).get("headers"))
    return "context-1m" in f"{headers.get('anthropic-beta')} {data.get('anthropic_beta')}"


def _request_fallbacks(name: str, data: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Fallbacks of the request itself, or of its key or team; LiteLLM takes the first that is there."""
    if data.get("disable_fallbacks"):
        return ()
    override = _mapping(data.get("router_settings_override"))
    source = data.get("fallbacks") or override.get("fallbacks")
    return tuple(_fallbacks_in(source, name))[:_MOST_FALLBACKS] if source else None


def _fallbacks_in(source: object, name: str) -> Iterator[str]:
    """Names that stand in for `name`: plain names, `{"model": …}`, `{name: […]}`, else `{"*": […]}`."""
    items = source if isinstance(source, list | tuple) else [source]
    maps = [item for item in items if isinstance(item, Mapping)]
    yield from _names(items)
    yield from _names(item.get("model") for item in maps)
    bare = name.rpartition("/")[2]
    keyed = [item[key] for item in maps for key in (name, bare) if key in item]
    for chain in keyed or [item["*"] for item in maps if "*" in item]:
        yield from _names(chain if isinstance(chain, list | tuple) else [chain])


# --- what is known ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Deployment:
    """One upstream: its model name, what the operator wrote beside it, and the cost map's entries for it.

    `million`: the group's or the upstream's name ends in `[1m]`.
    """

    name: str
    info: Mapping[str, Any]
    entries: tuple[Mapping[str, Any], ...]
    million: bool


def read(asked: Asked, router: Any, costs: Mapping[str, Any]) -> ModelFacts:
    """Facts from a router (None: there is none) and a cost map."""
    group = _deployments(asked.name, asked.team, router, costs)
    others = [
        deployment
        for name in _fallback_closure(asked, router)
        for deployment in _deployments(name, asked.team, router, costs)
    ]
    families = [family_of(deployment.name) for deployment in group]
    windows = [_window(deployment, asked.million) for deployment in (*group, *others)]
    outputs = [_max_output(deployment) for deployment in group]
    return ModelFacts(
        name=group[0].name,
        family="claude-haiku" if "claude-haiku" in families else families[0],
        window=min((window for window in windows if window), default=None),
        max_output=None if None in outputs else max(output for output in outputs if output),
        price_step=min((step for deployment in group for step in _price_steps(deployment)), default=None),
        openmem=next((_mapping(d.info["openmem"]) for d in group if d.info.get("openmem")), {}),
    )


def _fallback_closure(asked: Asked, router: Any) -> list[str]:
    """The fallbacks and theirs in turn: LiteLLM walks on when one fails too."""
    configured = getattr(router, "fallbacks", None) or []
    first = asked.fallbacks if asked.fallbacks is not None else tuple(_fallbacks_in(configured, asked.name))
    reached: list[str] = []
    waiting = list(first)
    while waiting and len(reached) < _MOST_FALLBACKS:
        name = waiting.pop(0)
        if name != asked.name and name not in reached:
            reached.append(name)
            waiting += _fallbacks_in(configured, name)
    return reached


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
        except _NEVER_REACHED:
            continue
        if rows:
            return rows
    return []


def _deployment(name: str, row: object, costs: Mapping[str, Any]) -> _Deployment:
    params, info = _part(row, "litellm_params"), _part(row, "model_info")
    upstream = _names([params.get("model")]) or (name,)
    priced_as = _names([info.get("base_model"), params.get("base_model"), *upstream])
    own_prices = {key: value for key, value in params.items() if _PRICE_STEP.fullmatch(key)}
    million = any(spelled.lower().endswith("[1m]") for spelled in (name, upstream[0]))
    return _Deployment(upstream[0], {**own_prices, **info}, tuple(_entries(priced_as, costs)), million)


def _part(row: object, name: str) -> Mapping[str, Any]:
    value = row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
    dump = getattr(value, "model_dump", None)
    return _mapping(dump(exclude_none=True) if callable(dump) else value)


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


# --- the cost map ----------------------------------------------------------------------------------------

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

_DATED = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d|latest)$")
_BEDROCK = re.compile(r"(?:[a-z-]+\.)?anthropic\.(.+?)(?:-v\d+)?(?::\d+)?")
_PRICE_STEP = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


def _spellings(name: str) -> Iterator[str]:
    """Names under which the cost map may hold a model, the most exact first."""
    plain = name[:-4] if name.lower().endswith("[1m]") else name
    yield plain
    provider, _, rest = plain.partition("/")
    if rest and provider in _SELF_HOSTED:
        return
    while rest:
        yield rest
        rest = rest.partition("/")[2]
    last = plain.rpartition("/")[2]
    bedrock = _BEDROCK.fullmatch(last)
    short = bedrock[1] if bedrock else last
    yield from (short, _DATED.sub("", short))


def _entries(names: Sequence[str], costs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for spelling in dict.fromkeys(spelling for name in names for spelling in _spellings(name)):
        entry = costs.get(spelling)
        if isinstance(entry, Mapping):
            yield entry


def listed(name: str, costs: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The cost map's entries for a model, the most exact first."""
    return tuple(_entries((name,), costs))


def _count(value: object) -> int | None:
    """A positive number of tokens, as written by hand or machine; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value < 10**12 else None


def _said(deployment: _Deployment, *keys: str) -> int | None:
    counts = (_count(source.get(key)) for source in (deployment.info, *deployment.entries) for key in keys)
    return next((count for count in counts if count), None)


def _window(deployment: _Deployment, million: bool) -> int | None:
    """The operator's number counts alone. `max_tokens` is no window: in LiteLLM it means the answer's."""
    own = _count(deployment.info.get("max_input_tokens"))
    if own is not None:
        return own
    listed = _said(deployment, "max_input_tokens")
    family = family_of(deployment.name)
    if deployment.million or (million and family.startswith("claude") and family != "claude-haiku"):
        return max(MILLION, listed or 0)
    return listed


def _max_output(deployment: _Deployment) -> int | None:
    return _said(deployment, "max_output_tokens", "max_tokens")


def _price_steps(deployment: _Deployment) -> Iterator[int]:
    """Prompt sizes above which a token costs more, in tokens; LiteLLM writes them into the price's name."""
    for source in (deployment.info, *deployment.entries):
        matches = ((_PRICE_STEP.fullmatch(str(key)), price) for key, price in source.items())
        yield from (int(found[1]) * 1000 for found, price in matches if found and price)


# --- remembering -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Remembered:
    """Facts that hold while router, lists and cost map are the same objects of the same length."""

    facts: dict[Asked, ModelFacts] = field(default_factory=dict)
    objects: tuple[object, ...] = ()
    lengths: tuple[int, ...] = ()

    def follow(self, router: Any, costs: Mapping[str, Any]) -> None:
        """Forgets everything when a model, alias, fallback or price was added or replaced."""
        lists = [getattr(router, name, None) or () for name in ("model_list", "fallbacks", "model_group_alias")]
        models = lists[0]
        newest = models[-1] if isinstance(models, list) and models else None
        objects = (router, costs, newest, *lists)
        lengths = tuple(len(one) if isinstance(one, Sized) else 0 for one in (costs, *lists))
        if lengths != self.lengths or any(a is not b for a, b in zip(objects, self.objects, strict=True)):
            self.facts, self.objects, self.lengths = {}, objects, lengths

    def keep(self, asked: Asked, facts: ModelFacts) -> None:
        """A client may name anything: past a bound, start over."""
        if len(self.facts) >= _MOST_REMEMBERED:
            self.facts = {}
        self.facts[asked] = facts


_REMEMBERED = _Remembered()
