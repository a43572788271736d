"""Providers as they are documented: what they refuse, what they count, what their caches hold.

Nothing here imports what it judges: a mistake in one must not hide the same mistake in the other.
"""

from __future__ import annotations

from typing import Any

from openmem_hook.replay.provider import rules_anthropic, rules_chat, rules_responses
from openmem_hook.replay.provider.signatures import SignatureRegistry
from openmem_hook.replay.transcript import Format

_CHECKS = {
    "anthropic": rules_anthropic.check,
    "chat": rules_chat.check,
    "responses": rules_responses.check,
}


def check(body: dict[str, Any], fmt: Format, registry: SignatureRegistry | None = None) -> list[str]:
    """Objections of the provider that speaks `fmt`, none where it accepts the body. `registry` is what it signed."""
    return _CHECKS[fmt](body, registry)
