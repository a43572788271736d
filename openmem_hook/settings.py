"""The settings of a request, and in one table what each of them may be set to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

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
    """The settings of one request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    enabled: Switch = True
    """Off makes no new edits; those already made are still replayed."""

    agents: Agents = Field(default_factory=lambda: MappingProxyType({}))
    """The same for one agent, over `enabled`."""

    trim_at_tokens: TrimAt | None = None
    """Tokens of a prompt that is trimmed; None for the rule in `limits`."""

    trim_to_fraction: Fraction = 0.3
    """Share that a trim leaves of what system prompt and tools leave of that size."""

    chars_per_token: CharsPerToken | None = None
    """First guess for a model without a usage report; None for that of its family."""

    compress_over_tokens: CompressOver = 4000
    """Tokens of a tool result above which it goes out shortened; 0 for never."""

    max_body_bytes: BodyBytes = 30_000_000
    """Bytes of a request above which it is trimmed; below the 32 MB that Anthropic accepts."""

    max_media: MediaCount = 90
    """Pictures and documents above which a request is trimmed; below the 100 that Anthropic accepts."""

    standing_instruction: Switch = True
    """Whether the constant note stands at the end of the system prompt."""

    ttl_days: Days = 30
    """Days without a request after which a session is deleted; 0 for never."""

    deadline_s: Seconds = 2.0
    """Seconds after which a request goes on without new edits."""

    tenant: Owner = "user"
    """Who shares sessions: the keys of a user, or those of a team."""

    state_dir: Folder = Path("~/.local/share/openmem/context")
    """The folder of the store."""

    def enabled_for(self, agent: str) -> bool:
        """Whether new edits are made for this agent; one that is not listed follows `enabled`."""
        return next((on for name, on in self.agents.items() if name == agent), self.enabled)


# --- what may be set, in one table ------------------------------------------------------------------------

_SWITCH_WORDS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15}")


def _read_switch(text: str) -> object:
    return _SWITCH_WORDS.get(text.lower(), text)


def _read_whole(text: str) -> object:
    return int(text) if _WHOLE.fullmatch(text) else text


def _read_decimal(text: str) -> object:
    return float(text) if _DECIMAL.fullmatch(text) else text


def _read_state_folder(text: str) -> object:
    """`OPENMEM_STATE_DIR` is shared with other parts of openmem; ours is its folder `context`."""
    return f"{text.rstrip('/')}/context"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one key may be set to, how, and where."""

    adapter: TypeAdapter[Any]
    """Checks a value's type and range."""

    domain: str
    """The words that complete "… is allowed"."""

    read: Callable[[str], object]
    """Reads the key's text form. Text that it can't read it gives back, so that the check refuses it."""

    variable: str = ""
    """The environment variable; "" for none."""

    per_request: bool = True
    """Whether the key may stand in a header, key, team or model, and not for the whole gateway only."""

    def accepts(self, value: object) -> bool:
        """Whether the value is of the key's type and in its range."""
        try:
            self.adapter.validate_python(value)
        except ValidationError:
            return False
        return True


def _rule(kind: Any, domain: str, read: Callable[[str], object], variable: str = "", **more: bool) -> Rule:
    return Rule(TypeAdapter(kind, config=Settings.model_config), domain, read, variable, **more)


_ON_OFF = "true or false"
_FILE_PATH = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "enabled": _rule(Switch, _ON_OFF, _read_switch, "CONTEXT_PROXY_ENABLED"),
        "agents.claude-code": _rule(Switch, _ON_OFF, _read_switch),
        "agents.codex": _rule(Switch, _ON_OFF, _read_switch),
        "agents.opencode": _rule(Switch, _ON_OFF, _read_switch),
        "trim_at_tokens": _rule(TrimAt, "a whole number of at least 1000", _read_whole, "CONTEXT_TRIM_AT_TOKENS"),
        "trim_to_fraction": _rule(Fraction, "a number from 0.05 to 0.9", _read_decimal, "CONTEXT_TRIM_TO_FRACTION"),
        "chars_per_token": _rule(CharsPerToken, "a number from 0.5 to 20", _read_decimal, "CONTEXT_CHARS_PER_TOKEN"),
        "compress_over_tokens": _rule(
            CompressOver, "a whole number, 0 for off,", _read_whole, "CONTEXT_COMPRESS_OVER_TOKENS"
        ),
        "max_body_bytes": _rule(BodyBytes, "a whole number of at least 100000", _read_whole),
        "max_media": _rule(MediaCount, "a whole number from 1 to 10000", _read_whole),
        "standing_instruction": _rule(Switch, _ON_OFF, _read_switch, "CONTEXT_STANDING_INSTRUCTION"),
        "ttl_days": _rule(
            Days, "a whole number, 0 to keep all,", _read_whole, "CONTEXT_STORE_TTL_DAYS", per_request=False
        ),
        "deadline_s": _rule(Seconds, "a number of seconds above 0, at most 60,", _read_decimal, per_request=False),
        "tenant": _rule(Owner, "user or team", str, per_request=False),
        "state_dir": _rule(_FILE_PATH, "a folder", _read_state_folder, "OPENMEM_STATE_DIR", per_request=False),
    }
)
PER_REQUEST: Mapping[str, Rule] = MappingProxyType({key: rule for key, rule in RULES.items() if rule.per_request})
GROUPS = frozenset(key.partition(".")[0] for key in RULES if "." in key)
"""Keys whose value is a mapping of further keys."""
