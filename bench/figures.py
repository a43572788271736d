"""What a section measured: figures with their targets, as one aligned table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE_MB = 4096 / 1e6


@dataclass(frozen=True, slots=True)
class Figure:
    """`at_most` is the target that the project promises, None for a figure that only informs."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None

    @property
    def met(self) -> bool:
        return self.at_most is None or self.value <= self.at_most

    def cells(self) -> tuple[str, str, str, str]:
        target = "" if self.at_most is None else f"<= {_number(self.at_most)} {self.unit}".rstrip()
        verdict = "" if self.at_most is None else ("ok" if self.met else "MISSED")
        return self.name, f"{_number(self.value)} {self.unit}".rstrip(), target, verdict

    def as_data(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "unit": self.unit, "at_most": self.at_most, "met": self.met}


@dataclass(frozen=True, slots=True)
class Section:
    """`rows`: all that was measured, where it is more than the figures; `made`: seeds, settings, other versions."""

    name: str
    about: str
    figures: Sequence[Figure]
    rows: Sequence[Mapping[str, Any]] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> str:
        rows = [("", "measured", "target", ""), *(figure.cells() for figure in self.figures)]
        widths = [max(len(row[at]) for row in rows) for at in range(4)]
        lines = [
            f"  {row[0].ljust(widths[0])}  {row[1].rjust(widths[1])}  {row[2].rjust(widths[2])}  {row[3]}".rstrip()
            for row in rows
        ]
        return "\n".join([f"{self.name}: {self.about}", *lines])


Measure = Callable[[Path, bool], Section]
"""A section: an empty folder to work in, and whether to be quick (a smaller run, for trying things out)."""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def resident_mb() -> float:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MB
