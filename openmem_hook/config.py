"""The settings: what may be set where, who wins, and what follows from it for a model.

Pure: takes parsed data and an environment mapping, touches neither files nor `os.environ`. Every source is
read into a flat layer (`{"trim_at_tokens": 90000, "agents.codex": False}`) against one table, `RULES`; layers
are merged from the lowest up. What is wrong at start raises `SettingsError`, at run time it is left out and
reported as `Ignored`. `limits` turns settings and a model's facts into the numbers decisions use.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

LARGEST = 10**15
"""No number of tokens, bytes or days is larger; keeps absurd text out of integer arithmetic."""

Agent = Literal["claude-code", "codex", "opencode"]
Switch = bool
TrimAt = Annotated[int, Field(ge=1000, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0.05, le=0.9)]
CharsPerToken = Annotated[float, Field(ge=0.5, le=20)]
CompressOver = Annotated[int, Field(ge=0, le=LARGEST)]
BodyBytes = Annotated[int, Field(ge=100_000, le=LARGEST)]
MediaCount = Annotated[int, Field(ge=1, le=10_000)]
Days = Annotated[int, Field(ge=0, le=36_500)]
Seconds = Annotated[float, Field(gt=0, le=60)]
Owner = Literal["user", "team"]
Folder = Annotated[Path, Field(strict=False)]
Agents = Annotated[Mapping[Agent, Switch], AfterValidator(MappingProxyType), PlainSerializer(dict)]


class Settings(BaseModel):
    """The settings of one request. Sizes in tokens unless the name says bytes; `None` means the default rule.

    `max_body_bytes` stays below the 32 MB, `max_media` below the 100 images that Anthropic accepts a request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    enabled: Switch = True
    agents: Agents = Field(default_factory=lambda: MappingProxyType({}))
    trim_at_tokens: TrimAt | None = None
    trim_to_fraction: Fraction = 0.3
    chars_per_token: CharsPerToken | None = None
    compress_over_tokens: CompressOver = 4000
    max_body_bytes: BodyBytes = 30_000_000
    max_media: MediaCount = 90
    standing_instruction: Switch = True
    ttl_days: Days = 30
    deadline_s: Seconds = 2.0
    tenant: Owner = "user"
    state_dir: Folder = Path("~/.local/share/openmem/context")

    def enabled_for(self, agent: str) -> bool:
        """Whether new edits are made for this agent; one that is not listed follows `enabled`."""
        return next((on for name, on in self.agents.items() if name == agent), self.enabled)


class SettingsError(ValueError):
    """A setting that stops the start: one line with the place, the key, the value and what is allowed."""


# --- what may be set, in one table ------------------------------------------------------------------------

_SWITCH_WORDS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15}")


def _switch(text: str) -> object:
    return _SWITCH_WORDS.get(text.lower(), text)


def _whole(text: str) -> object:
    return int(text) if _WHOLE.fullmatch(text) else text


def _decimal(text: str) -> object:
    return float(text) if _DECIMAL.fullmatch(text) else text


@dataclass(frozen=True, slots=True)
class Rule:
    """One key: its type, the words that complete "… is allowed", and how its text form is read.

    A reader gives text back that it can't read, so that the type check refuses it. `variable` is the
    environment variable, empty for none. Only `per_request` keys may stand in a header, key, team or model.
    """

    adapter: TypeAdapter[Any]
    allowed: str
    read: Callable[[str], object]
    variable: str = ""
    per_request: bool = True

    def accepts(self, value: object) -> bool:
        try:
            self.adapter.validate_python(value)
        except ValidationError:
            return False
        return True


def _rule(kind: Any, allowed: str, read: Callable[[str], object], variable: str = "", **more: bool) -> Rule:
    return Rule(TypeAdapter(kind, config=Settings.model_config), allowed, read, variable, **more)


def _state_folder(text: str) -> object:
    """`OPENMEM_STATE_DIR` is shared with other parts of openmem; ours is its folder `context`."""
    return f"{text.rstrip('/')}/context"


_ON_OFF = "true or false"
_FILE_PATH = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "enabled": _rule(Switch, _ON_OFF, _switch, "CONTEXT_PROXY_ENABLED"),
        "agents.claude-code": _rule(Switch, _ON_OFF, _switch),
        "agents.codex": _rule(Switch, _ON_OFF, _switch),
        "agents.opencode": _rule(Switch, _ON_OFF, _switch),
        "trim_at_tokens": _rule(TrimAt, "a whole number of at least 1000", _whole, "CONTEXT_TRIM_AT_TOKENS"),
        "trim_to_fraction": _rule(Fraction, "a number from 0.05 to 0.9", _decimal, "CONTEXT_TRIM_TO_FRACTION"),
        "chars_per_token": _rule(CharsPerToken, "a number from 0.5 to 20", _decimal, "CONTEXT_CHARS_PER_TOKEN"),
        "compress_over_tokens": _rule(
            CompressOver, "a whole number, 0 for off,", _whole, "CONTEXT_COMPRESS_OVER_TOKENS"
        ),
        "max_body_bytes": _rule(BodyBytes, "a whole number of at least 100000", _whole),
        "max_media": _rule(MediaCount, "a whole number from 1 to 10000", _whole),
        "standing_instruction": _rule(Switch, _ON_OFF, _switch, "CONTEXT_STANDING_INSTRUCTION"),
        "ttl_days": _rule(Days, "a whole number, 0 to keep all,", _whole, "CONTEXT_STORE_TTL_DAYS", per_request=False),
        "deadline_s": _rule(Seconds, "a number of seconds above 0, at most 60,", _decimal, per_request=False),
        "tenant": _rule(Owner, "user or team", str, per_request=False),
        "state_dir": _rule(_FILE_PATH, "a folder", _state_folder, "OPENMEM_STATE_DIR", per_request=False),
    }
)
PER_REQUEST: Mapping[str, Rule] = MappingProxyType({key: rule for key, rule in RULES.items() if rule.per_request})
_GROUPS = frozenset(key.partition(".")[0] for key in RULES if "." in key)

Layer = Mapping[str, object]
"""What one source says: flat keys of `RULES` with accepted values."""


# --- reading one source -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """Something a source says that can't be used. `problem` never holds the value."""

    key: str
    value: object
    problem: str
    unknown: bool = False


def _flat(block: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Keys and values of a block, `agents: {codex: …}` as `agents.codex`. A null value says nothing."""
    for raw_key, value in block.items():
        key = prefix + (raw_key if isinstance(raw_key, str) else repr(raw_key))
        if key in _GROUPS and isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif value is not None:
            yield key, value


def _unknown(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key[:80], known, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"no such setting; {hint}known: {', '.join(known)}"


def _fault(key: str, value: object, rules: Mapping[str, Rule]) -> Fault | None:
    rule = rules.get(key)
    if rule is not None:
        return None if rule.accepts(value) else Fault(key, value, f"{rule.allowed} is allowed")
    if key in RULES:
        return Fault(key, value, "it can only be set for the whole gateway")
    if key in _GROUPS:
        names = ", ".join(name.partition(".")[2] for name in rules if name.startswith(f"{key}."))
        return Fault(key, value, f"a mapping of {names} to true or false is allowed")
    return Fault(key, value, _unknown(key, list(rules)), unknown=True)


def read_block(block: object, rules: Mapping[str, Rule]) -> tuple[Layer, tuple[Fault, ...]]:
    """A parsed block of settings as a layer, and what in it can't be used. Its good keys count even so."""
    if block is None:
        return {}, ()
    if not isinstance(block, Mapping):
        return {}, (Fault("", block, "a mapping of settings is allowed"),)
    layer: dict[str, object] = {}
    faults: list[Fault] = []
    for key, value in _flat(block):
        fault = _fault(key, value, rules)
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
        fault = _fault(key, value, PER_REQUEST)
        if fault is not None:
            faults.append(fault)
        else:
            layer[key] = value
    return layer, "raw" in (word.lower() for word in words), tuple(faults)


def merge(layers: Sequence[Layer]) -> Layer:
    """Layers, the lowest first. One that says `enabled` says it for every agent it doesn't name itself."""
    merged: dict[str, object] = {}
    for layer in layers:
        if "enabled" in layer:
            merged = {key: value for key, value in merged.items() if not key.startswith("agents.")}
        merged.update(layer)
    return merged


def _settings(flat: Layer) -> Settings:
    named = {key.partition(".")[2]: value for key, value in flat.items() if key.startswith("agents.")}
    rest: dict[str, Any] = {key: value for key, value in flat.items() if "." not in key}
    return Settings(agents=named, **rest)  # type: ignore[arg-type]


# --- at start ---------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _refuse(place: str, faults: Sequence[Fault]) -> None:
    if not faults:
        return
    fault = faults[0]
    name = ".".join(filter(None, (place, fault.key if fault.key.isprintable() else ascii(fault.key))))[:160]
    said = "" if fault.unknown else f" is {_shown(fault.value)}"
    raise SettingsError(f"openmem: {name}{said}: {fault.problem}")


def _environment(environ: Mapping[str, str]) -> Layer:
    """What our variables say; others may begin with CONTEXT_ too and are none of our business."""
    layer: dict[str, object] = {}
    for key, rule in RULES.items():
        text = environ.get(rule.variable, "").strip() if rule.variable else ""
        if not text:
            continue
        value = rule.read(text)
        if not rule.accepts(value):
            shown = Fault("", text, f"{rule.allowed} is allowed")
            _refuse(f"environment variable {rule.variable} ({key})", (shown,))
        layer[key] = value
    return layer


def _at_home(flat: Layer, environ: Mapping[str, str]) -> Layer:
    folder = str(flat.get("state_dir", Settings.model_fields["state_dir"].default))
    home = environ.get("HOME", "")
    if home and (folder == "~" or folder.startswith("~/")):
        folder = str(Path(home) / folder[2:])
    return {**flat, "state_dir": folder}


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What holds for the whole gateway: file and environment over the defaults. Compared by identity."""

    flat: Layer
    settings: Settings


def load(callback_settings: object, environ: Mapping[str, str]) -> Base:
    """`callback_settings.openmem` and the environment, checked. Raises SettingsError with one line."""
    layer, faults = read_block(callback_settings, RULES)
    _refuse("callback_settings.openmem", faults)
    flat = _at_home(merge((layer, _environment(environ))), environ)
    return Base(MappingProxyType(dict(flat)), _settings(flat))


def check_model(model_name: str, block: object) -> None:
    """Checks one model's `model_info.openmem` at start. Raises SettingsError."""
    _refuse(f"model {_shown(model_name)} model_info.openmem", read_block(block, PER_REQUEST)[1])


# --- at run time ------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z][A-Za-z_.\-]{0,39}")


@dataclass(frozen=True, slots=True)
class Ignored:
    """A setting met at run time and left out. Holds the value's type, never the value: it may be a secret."""

    where: str
    key: str
    reason: str

    @classmethod
    def of(cls, where: str, fault: Fault) -> Ignored:
        key = fault.key if _NAME.fullmatch(fault.key) else ""
        return cls(where, key, f"{type(fault.value).__name__} found: {fault.problem}"[:600])


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of one request. `raw`: the client wants its own bytes sent."""

    settings: Settings
    raw: bool = False
    ignored: tuple[Ignored, ...] = ()


def _layers(header: str, blocks: Sequence[tuple[str, object]]) -> tuple[list[Layer], bool, tuple[Ignored, ...]]:
    layers: list[Layer] = []
    ignored: list[Ignored] = []
    for where, block in blocks:
        layer, faults = read_block(block, PER_REQUEST)
        layers.append(layer)
        ignored += (Ignored.of(where, fault) for fault in faults)
    layer, raw, faults = read_header(header)
    ignored += (Ignored.of("header", fault) for fault in faults)
    return [*layers, layer], raw, tuple(ignored)


def _resolve(base: Base, header: str, blocks: Sequence[tuple[str, object]]) -> Resolved:
    layers, raw, ignored = _layers(header, blocks)
    if not any(layers):
        return Resolved(base.settings, raw, ignored)
    return Resolved(_settings(merge((base.flat, *layers))), raw, ignored)


@lru_cache(maxsize=1024)
def _resolve_frozen(base: Base, header: str, frozen: bytes) -> Resolved:
    return _resolve(base, header, orjson.loads(frozen))


def resolve(
    base: Base, *, header: str | None = None, key: object = None, team: object = None, model: object = None
) -> Resolved:
    """The settings of one request: header over key over team over model over what holds for the gateway.

    `key`, `team` and `model` are the `openmem` blocks of the key's metadata, the team's metadata and the
    model's `model_info`. Wrong values and unknown keys are left out and reported, the rest of a block counts.
    Called for each request, so answers are remembered by content (a few µs).
    """
    blocks = [("model", model), ("team", team), ("key", key)]
    said = (header or "")[:_LONGEST_HEADER]
    try:
        frozen = orjson.dumps(blocks, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return _resolve(base, said, blocks)
    return _resolve_frozen(base, said, frozen)


# --- models and limits ------------------------------------------------------------------------------------

_FAMILIES = (
    ("haiku", "claude-haiku"),
    ("sonnet", "claude-sonnet"),
    ("opus", "claude-opus"),
    ("claude", "claude"),
    ("codex", "gpt"),
    *((word, word) for word in ("gpt", "gemini", "grok", "qwen", "deepseek", "kimi", "glm", "llama")),
)


def family_of(name: str) -> str:
    """The model family a name belongs to, empty when no known word is in it."""
    lowered = name.lower()
    return next((family for word, family in _FAMILIES if word in lowered), "")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of the model a request goes to, after aliases were resolved. Sizes in tokens.

    `window`: the smallest input window among the deployments and the known fallbacks, None when unknown.
    `price_step`: prompts longer than this cost more a token. `openmem`: the model's own settings block.
    """

    name: str
    family: str = ""
    window: int | None = None
    max_output: int | None = None
    price_step: int | None = None
    openmem: Mapping[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the window is known; where it isn't, the default rule alone decides."""
        return self.window is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers a decision uses. `trim_at` and `hard` in tokens; `hard` is None when no window is known."""

    trim_at: int
    hard: int | None
    max_body_bytes: int
    max_media: int
    trim_to_fraction: float
    known: bool = True


TRIM_AT = 125_000
TRIM_AT_OF_FAMILY: Mapping[str, int] = MappingProxyType({"claude-haiku": 95_000})
RESERVE = 20_000
"""Tokens kept free for the answer, at most: design section 5. A model that can write less keeps less free."""


def _hard_limit(model: ModelFacts) -> int | None:
    if model.window is None:
        return None
    asked = RESERVE if model.max_output is None else model.max_output
    return max(1, model.window - min(asked, RESERVE, model.window // 4))


def limits(settings: Settings, model: ModelFacts) -> Limits:
    """Where a request to this model is trimmed. The default bows to a price step, all bow to the window."""
    default = TRIM_AT_OF_FAMILY.get(model.family or family_of(model.name), TRIM_AT)
    chosen = settings.trim_at_tokens or min(default, model.price_step or default)
    hard = _hard_limit(model)
    return Limits(
        trim_at=chosen if hard is None else min(chosen, hard),
        hard=hard,
        max_body_bytes=settings.max_body_bytes,
        max_media=settings.max_media,
        trim_to_fraction=settings.trim_to_fraction,
        known=model.known,
    )
