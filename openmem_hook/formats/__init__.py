"""Wire formats: the table that picks one by call type and shape.

A format is a module with all that `Adapter` in `openmem_hook.model` has, under the three headings of that protocol:
what reads a body (`Reader`), what edits a message (`Editor`), what finishes the body that goes out (`Finisher`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openmem_hook.formats import anthropic, chat, responses
from openmem_hook.model import Adapter

# Assigned one by one, so that mypy holds each module to the protocol and names what it lacks.
_ANTHROPIC: Adapter = anthropic
_RESPONSES: Adapter = responses
_CHAT: Adapter = chat

ADAPTERS: tuple[Adapter, ...] = (_ANTHROPIC, _RESPONSES, _CHAT)
"""In the order in which they are tried; chat, the least particular shape, comes last."""

ANY_BODY = "pass_through_endpoint"
"""The call type that says nothing of the body: there the shape alone decides."""


def adapter_for(call_type: str, data: Mapping[str, Any]) -> Adapter | None:
    """The format of a request, by call type and by shape; None for everything else."""
    is_declared = call_type != ANY_BODY
    candidates = (adapter for adapter in ADAPTERS if call_type in adapter.call_types)
    return next((adapter for adapter in candidates if adapter.matches(data, is_declared)), None)


def adapter_named(name: str) -> Adapter | None:
    return next((adapter for adapter in ADAPTERS if adapter.name == name), None)
