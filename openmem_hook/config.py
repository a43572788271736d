"""The settings' sources: how each is read, and who wins.

Pure: takes parsed data and an environment mapping, touches neither files nor `os.environ`. Every source is
read into a flat layer (`{"trim_at_tokens": 90000, "agents.codex": False}`) against one table, `RULES`; layers
are merged from the lowest up. What is wrong at start raises `SettingsError`, at run time it is left out and
reported as an `IgnoredSetting`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import orjson

from openmem_hook.settings import GROUPS, PER_REQUEST, RULES, Rule, Settings

Layer = Mapping[str, object]
"""What one source says: flat keys of `RULES` with accepted values."""

Source = Literal["model", "team", "key", "header"]
"""Where a request's own settings may stand, the lowest first."""


class SettingsError(ValueError):
    """A setting that stops the start: one line with the place, the key, the value and what is allowed."""


# --- reading one source -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """Something a source says that can't be used."""

    key: str
    """The flat key as it was written; "" for the block itself."""

    value: object

    problem: str
    """What is wrong, in words that never hold the value."""

    unknown: bool = False
    """Whether there is no setting of this name."""


def _flat(block: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Keys and values of a block, `agents: {codex: …}` as `agents.codex`. A null value says nothing."""
    for raw_key, value in block.items():
        key = prefix + (raw_key if isinstance(raw_key, str) else repr(raw_key))
        if key in GROUPS and isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif value is not None:
            yield key, value


def _check(key: str, value: object, rules: Mapping[str, Rule]) -> Fault | None:
    """What is wrong with this value of this key; None for nothing."""
    rule = rules.get(key)
    if rule is not None:
        return None if rule.accepts(value) else Fault(key, value, f"{rule.domain} is allowed")
    if key in RULES:
        return Fault(key, value, "it can only be set for the whole gateway")
    if key in GROUPS:
        names = ", ".join(name.partition(".")[2] for name in rules if name.startswith(f"{key}."))
        return Fault(key, value, f"a mapping of {names} to true or false is allowed")
    near = difflib.get_close_matches(key[:80], rules, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return Fault(key, value, f"no such setting; {hint}known: {', '.join(rules)}", unknown=True)


def read_block(block: object, rules: Mapping[str, Rule]) -> tuple[Layer, tuple[Fault, ...]]:
    """A parsed block of settings as a layer, and what in it can't be used. Its good keys count even so."""
    if block is None:
        return {}, ()
    if not isinstance(block, Mapping):
        return {}, (Fault("", block, "a mapping of settings is allowed"),)
    layer: dict[str, object] = {}
    faults: list[Fault] = []
    for key, value in _flat(block):
        fault = _check(key, value, rules)
        if fault is None:
            layer[key] = value
        else:
            faults.append(fault)
    return layer, tuple(faults)


HEADER_WORDS: Mapping[str, Layer] = MappingProxyType({"raw": {}, "on": {"enabled": True}, "off": {"enabled": False}})
_MOST_WORDS = 32
_LONGEST_HEADER = 1000
"""Words and characters of an `x-openmem` header that are looked at; all keys together need less than that."""


def read_header(header: str) -> tuple[Layer, bool, tuple[Fault, ...]]:
    """`x-openmem`: words `raw`, `on`, `off` and `key=value`, comma separated, the last one wins.

    Returns the layer, whether the client asked for its own bytes, and the words that can't be used.
    """
    layer: dict[str, object] = {}
    faults: list[Fault] = []
    words = [word.strip() for word in header.split(",", _MOST_WORDS)[:_MOST_WORDS]]
    for word in filter(None, words):
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals and key.lower() in HEADER_WORDS:
            layer.update(HEADER_WORDS[key.lower()])
            continue
        rule = PER_REQUEST.get(key)
        value = rule.read(text) if rule is not None else text
        fault = _check(key, value, PER_REQUEST)
        if fault is not None:
            faults.append(fault)
        else:
            layer[key] = value
    return layer, "raw" in (word.lower() for word in words), tuple(faults)


def merge(layers: Sequence[Layer]) -> Layer:
    """Layers, the lowest first. One that says `enabled` says it for every agent it doesn't name itself."""
    flat: dict[str, object] = {}
    for layer in layers:
        if "enabled" in layer:
            flat = {key: value for key, value in flat.items() if not key.startswith("agents.")}
        flat.update(layer)
    return flat


def _settings(flat: Layer) -> Settings:
    agents = {key.partition(".")[2]: value for key, value in flat.items() if key.startswith("agents.")}
    rest: dict[str, Any] = {key: value for key, value in flat.items() if "." not in key}
    return Settings(agents=agents, **rest)  # type: ignore[arg-type]


# --- at start ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What holds for the whole gateway: file and environment over the defaults. Compared by identity."""

    flat: Layer
    """As a layer, below those of a request."""

    settings: Settings
    """The same, for requests that say nothing themselves."""


def load(callback_settings: object, environ: Mapping[str, str]) -> Base:
    """`callback_settings.openmem` and the environment, checked. Raises SettingsError with one line."""
    layer, faults = read_block(callback_settings, RULES)
    _refuse("callback_settings.openmem", faults)
    flat = _expand_home(merge((layer, _read_environment(environ))), environ)
    return Base(MappingProxyType(dict(flat)), _settings(flat))


def check_model(model_name: str, block: object) -> None:
    """Checks one model's `model_info.openmem` at start. Raises SettingsError."""
    _refuse(f"model {_quote(model_name)} model_info.openmem", read_block(block, PER_REQUEST)[1])


def _refuse(place: str, faults: Sequence[Fault]) -> None:
    """Raises SettingsError with the first of the faults, if there is one."""
    if not faults:
        return
    fault = faults[0]
    name = ".".join(filter(None, (place, fault.key if fault.key.isprintable() else ascii(fault.key))))[:160]
    value = "" if fault.unknown else f" is {_quote(fault.value)}"
    raise SettingsError(f"openmem: {name}{value}: {fault.problem}")


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _read_environment(environ: Mapping[str, str]) -> Layer:
    """What our variables say; others may begin with CONTEXT_ too and are none of our business."""
    layer: dict[str, object] = {}
    for key, rule in RULES.items():
        text = environ.get(rule.variable, "").strip() if rule.variable else ""
        if not text:
            continue
        value = rule.read(text)
        if not rule.accepts(value):
            # The value is quoted as the variable has it.
            fault = Fault("", text, f"{rule.domain} is allowed")
            _refuse(f"environment variable {rule.variable} ({key})", (fault,))
        layer[key] = value
    return layer


def _expand_home(flat: Layer, environ: Mapping[str, str]) -> Layer:
    folder = str(flat.get("state_dir", Settings.model_fields["state_dir"].default))
    home = environ.get("HOME", "")
    if home and (folder == "~" or folder.startswith("~/")):
        folder = str(Path(home) / folder[2:])
    return {**flat, "state_dir": folder}


# --- at run time ------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z][A-Za-z_.\-]{0,39}")


@dataclass(frozen=True, slots=True)
class IgnoredSetting:
    """A setting met at run time and left out. It holds the value's type, never the value, which may be a secret."""

    where: Source

    key: str
    """The flat key; "" where it looks like no name of a setting, and may be a secret itself."""

    reason: str
    """What was there instead and what is allowed."""

    @classmethod
    def of(cls, where: Source, fault: Fault) -> IgnoredSetting:
        key = fault.key if _NAME.fullmatch(fault.key) else ""
        return cls(where, key, f"{type(fault.value).__name__} found: {fault.problem}"[:600])


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """What the sources of one request come to."""

    settings: Settings

    raw: bool = False
    """Whether the client wants its own bytes sent."""

    ignored_settings: tuple[IgnoredSetting, ...] = ()
    """What was left out on the way."""


def resolve(
    base: Base, *, header: str | None = None, key: object = None, team: object = None, model: object = None
) -> ResolvedSettings:
    """The settings of one request: header over key over team over model over what holds for the gateway.

    `key`, `team` and `model` are the `openmem` blocks of the key's metadata, the team's metadata and the
    model's `model_info`. Wrong values and unknown keys are left out and reported, the rest of a block counts.
    Called for each request, so answers are remembered by content (a few µs).
    """
    blocks: list[tuple[Source, object]] = [("model", model), ("team", team), ("key", key)]
    text = (header or "")[:_LONGEST_HEADER]
    try:
        content = orjson.dumps(blocks, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return _resolve(base, text, blocks)
    return _resolve_by_content(base, text, content)


@lru_cache(maxsize=1024)
def _resolve_by_content(base: Base, header: str, content: bytes) -> ResolvedSettings:
    return _resolve(base, header, orjson.loads(content))


def _resolve(base: Base, header: str, blocks: Sequence[tuple[Source, object]]) -> ResolvedSettings:
    layers: list[Layer] = []
    ignored_settings: list[IgnoredSetting] = []
    for where, block in blocks:
        layer, faults = read_block(block, PER_REQUEST)
        layers.append(layer)
        ignored_settings += (IgnoredSetting.of(where, fault) for fault in faults)
    layer, raw, faults = read_header(header)
    layers.append(layer)
    ignored_settings += (IgnoredSetting.of("header", fault) for fault in faults)
    settings = _settings(merge((base.flat, *layers))) if any(layers) else base.settings
    return ResolvedSettings(settings, raw, tuple(ignored_settings))
