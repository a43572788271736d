"""One request, as the edge hands it over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openmem_hook.limits import Limits
from openmem_hook.model import Adapter
from openmem_hook.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """A body with what the edge knows of it. All names come from the gateway's authentication or the client's own
    words; nothing here is shown or logged."""

    adapter: Adapter
    body: Mapping[str, Any]
    """The client's own object, never changed."""
    tenant: str
    """Whose sessions these are, from the gateway's authentication alone."""
    session_id: str | None
    """The client's own id of its conversation; None where it names none."""
    subagent: str
    """The client's own name of a sub-agent, "" for the main agent."""
    agent: str
    """Which client it is (`claude-code`, …), "" for an unknown one."""
    model: str
    settings: Settings
    limits: Limits
    call_id: str | None = None
    """The gateway's id of the call, which the response will come back with."""
    may_edit: bool = True
    """False where the plugin is off: no new edits are made."""
    project: str = ""
    """A hash of what the client calls its project, "" for nothing."""
