"""How long the property tests of the pure rooms look: short by default, longer where the laws do."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("OPENMEM_LAWS_EXAMPLES", "40"))
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if os.environ.get("OPENMEM_LAWS_SHRINK") else [])]
"""Shrinking whole conversations takes minutes: asked for when a failure is looked into."""


def examples(times: float = 1.0, *, shrinks: bool = True) -> settings:
    """So many times the usual number of examples; `shrinks`: small ones are looked for in any case."""
    return settings(
        max_examples=max(1, int(EXAMPLES * times)),
        deadline=None,
        derandomize=True,
        print_blob=True,
        phases=[*Phase] if shrinks else PHASES,
        suppress_health_check=list(HealthCheck),
    )
