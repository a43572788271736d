"""Where a request is trimmed: what the settings and what is known of the model come to, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from openmem_hook.settings import Settings

TRIM_AT = 125_000
"""Tokens of a prompt that is trimmed where no setting says otherwise: the default that the README gives."""

TRIM_AT_OF_FAMILY: Mapping[str, int] = MappingProxyType({"claude-haiku": 95_000})
"""The same for a family of smaller models."""

RESERVE = 20_000
"""Tokens of the window kept free for the answer, at most. A model that can write less keeps less free, a small window
no more than a quarter. Chosen, not measured."""

_FAMILIES = (
    ("haiku", "claude-haiku"),
    ("sonnet", "claude-sonnet"),
    ("opus", "claude-opus"),
    ("claude", "claude"),
    ("codex", "gpt"),
    *((word, word) for word in ("gpt", "gemini", "grok", "qwen", "deepseek", "kimi", "glm", "llama")),
)
"""A word in a model's name and the family that it says, the most telling first."""


def family_of(name: str) -> str:
    """The model family a name belongs to, "" when no known word is in it."""
    lower = name.lower()
    return next((family for word, family in _FAMILIES if word in lower), "")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the gateway knows of the model a request goes to, after aliases were resolved. Sizes in tokens."""

    name: str
    """The upstream's name, with its provider where the gateway writes one."""

    family: str = ""
    """As `family_of` gives it; "" is unknown, and the name decides."""

    window: int | None = None
    """The smallest input window among the deployments and the known fallbacks; None where none is known."""

    max_output: int | None = None
    """The longest answer the model can write; None where it is unknown."""

    price_step: int | None = None
    """Prompts longer than this cost more a token; None where the price has no step."""

    openmem: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the operator wrote beside the model (`model_info.openmem`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers by which a request is trimmed."""

    trim_at: int
    """Tokens of a prompt that is trimmed."""

    hard: int | None
    """Tokens above which the model refuses a prompt; None where its window is unknown."""

    max_body_bytes: int
    """Bytes of a request's JSON above which it is trimmed, whatever its tokens."""

    max_media: int
    """Pictures and documents in a request above which it is trimmed."""

    trim_to_fraction: float
    """Share that a trim leaves of what system prompt and tools leave of `trim_at`."""


def derive_limits(settings: Settings, model: ModelFacts) -> Limits:
    """The limits of a request with these settings to this model."""
    # The default of the model's family stays below a price step; a number that somebody set doesn't.
    default = TRIM_AT_OF_FAMILY.get(model.family or family_of(model.name), TRIM_AT)
    trim_at = settings.trim_at_tokens or min(default, model.price_step or default)

    # Every number stays below the window, less what the answer needs.
    hard = None
    if model.window is not None:
        answer = RESERVE if model.max_output is None else model.max_output
        hard = max(1, model.window - min(answer, RESERVE, model.window // 4))
        trim_at = min(trim_at, hard)

    return Limits(trim_at, hard, settings.max_body_bytes, settings.max_media, settings.trim_to_fraction)
