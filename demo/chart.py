"""Two lines of numbers as one picture of block characters: what was sent, and what would have been."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

WIDTH = 64
HEIGHT = 12
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(prompts: Sequence[int], would_be: Sequence[int], limit: int) -> list[Text]:
    """Rows from the top: solid blocks for `prompts`, dots for `would_be` above them, a line for `limit`. In tokens."""
    top = max(*prompts, *would_be, limit)
    solid, dots = _columns(prompts), _columns(would_be)
    limit_row = min(HEIGHT - 1, int(limit / top * HEIGHT))
    rows = [_row(row, solid, dots, top, row == limit_row) for row in range(HEIGHT - 1, -1, -1)]
    axis = "request".center(len(solid) - 8)
    return [*rows, Text(f"{'':8}└{'─' * len(solid)}"), Text(f"{'':9}{1:<4}{axis}{len(prompts):>4}")]


def _columns(values: Sequence[int]) -> list[int]:
    """At most `WIDTH` columns; each shows the largest of its values, so that no peak is hidden."""
    width = min(WIDTH, len(values))
    edges = [at * len(values) // width for at in range(width + 1)]
    return [max(values[a:b]) for a, b in pairwise(edges)]


def _row(row: int, solid: Sequence[int], dots: Sequence[int], top: int, is_limit: bool) -> Text:
    value = round(top * (row + 1) / HEIGHT / 1000)
    line = Text(f"{value:>6}k │" if row % 3 == 2 or row == HEIGHT - 1 else f"{'':7} │")
    for prompt, would_be in zip(solid, dots, strict=True):
        eighths = round((prompt / top * HEIGHT - row) * 8)
        if eighths > 0:
            line.append(_EIGHTHS[min(eighths, 8)], "green")
        elif would_be / top * HEIGHT - row >= 0.5:
            line.append("·", "red")
        else:
            line.append("╌" if is_limit else " ", "yellow")
    return line
