"""Providers as they are documented: what they refuse, what they count, what their caches hold.

Nothing here imports what it judges: a mistake in one must not hide the same mistake in the other.
"""

from __future__ import annotations

from typing import Any

from openmem_hook.replay.provider import rules_anthropic, rules_chat, rules_responses
from openmem_hook.replay.provider.issued import Issued
from openmem_hook.replay.session import Format

_CHECKS = {
    "anthropic": rules_anthropic.check,
    "chat": rules_chat.check,
    "responses": rules_responses.check,
}


def check(body: dict[str, Any], fmt: Format, issued: Issued | None = None) -> list[str]:
    """Objections of the provider that speaks `fmt`."""
    return _CHECKS[fmt](body, issued)
