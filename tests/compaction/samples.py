"""Edits of every kind and state."""

from __future__ import annotations

from dataclasses import replace

from openmem_hook.compaction.edits import Edit
from tests.compaction.sketches import cut, history, splice, swap

LINE = history("T1 C1,2 R1,2 A1 T2 C3 R3 A3")
TRIM, DEEP_TRIM = cut(LINE, "A1", "T1"), cut(LINE, "A3", "T1")
INNER = cut(LINE, "R3", "R3", start="C3")
SPLICE = splice(LINE, "A3", messages=b'[{"role":"assistant"}]')
SWAP, OTHER_SWAP = swap(LINE, "R1,2", "1"), swap(LINE, "R1,2", "2", text="lone \ud800")

SAMPLES: dict[str, Edit] = {
    "a trim": TRIM,
    "an inner cut": INNER,
    "a cut of no known format or position": replace(TRIM, format="", position=None),
    "a cut at the first message": cut(history("A1 T2"), "A1"),
    "a swap": SWAP,
    "a swap of a lone surrogate": OTHER_SWAP,
    "a splice": SPLICE,
    "a splice of another format": replace(SPLICE, format="responses"),
    "a prepared edit": replace(DEEP_TRIM, state="prepared", generation=7, reason="forced"),
    "an abandoned edit": replace(SWAP, state="abandoned"),
}
