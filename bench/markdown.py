"""Tables and numbers as the page writes them."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    return "\n".join([*lines, ""])


def plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("sh") else f"{kind}s"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else NOTHING


def share(part: float | None) -> str:
    """Of a share between 0 and 1, with a digit where it says something."""
    if part is None:
        return NOTHING
    return f"{100 * part:.0f} %" if part in (0, 1) or 0.1 <= part < 0.995 else f"{100 * part:.1f} %"


def number(value: float | None, unit: str = "") -> str:
    """Three digits that count; whole from a hundred on."""
    if value is None:
        return NOTHING
    said = f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"
    return f"{said} {unit}".rstrip()
