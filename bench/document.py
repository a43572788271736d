"""docs/benchmarks.md, made from the results in docs/benchmarks: `python -m bench.document`.

Nothing in the page's tables is written by hand; a test compares the page with what this makes of the committed files.
A result that isn't there leaves its part out.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import recall_parts, timing_parts
from bench.figures import Section

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "benchmarks"
PAGE = DOCS / "benchmarks.md"
PACKAGES = ("openmem-hook", "litellm", "cliffcompaction", "tokenizers")

Result = Mapping[str, Any]


def keep(section: Section, load: float | None = None) -> None:
    """Writes a section's rows, or else its figures, beside the others, its charts, and the page anew. `load` is the
    machine's before the measurement."""
    RESULTS.mkdir(exist_ok=True)
    held = {
        "section": section.name,
        "about": section.about,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": {**machine(), "load_before": load},
        "made": dict(section.made),
        "rows": list(section.rows) or [figure.as_data() for figure in section.figures],
    }
    rows = ",\n  ".join(json.dumps(row) for row in held.pop("rows"))
    head = json.dumps(held, indent=1).removesuffix("\n}")
    (RESULTS / f"{section.name}.json").write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', "utf-8")
    write()


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "processor": _processor(),
    }


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text("utf-8").splitlines() if about.exists() else []
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.machine()


def write() -> None:
    from bench import charts

    results = load()
    charts.draw(results, RESULTS)
    PAGE.write_text(page(results), "utf-8")


def load() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """The whole document."""
    parts = [_TOP.format(answers=_answers(results))]
    for name, part in _PARTS.items():
        if name in results:
            parts += part(results[name])
    parts += timing_parts.promises(results)
    parts.append(_END.format(made=_made(results)))
    return "\n".join(parts)


def _answers(results: Mapping[str, Result]) -> str:
    lines = [*recall_parts.answers(results), *timing_parts.answers(results)]
    return "\n".join(textwrap.fill(f"- {line}", 120, subsequent_indent="  ") for line in lines)


def _made(results: Mapping[str, Result]) -> str:
    return "\n".join(_made_so(name, held) for name, held in results.items())


def _made_so(name: str, held: Result) -> str:
    made, machine = held.get("made", {}), held["machine"]
    versions = held["versions"] | made.get("peers", {})
    said = [", ".join(f"{package} {version}" for package, version in versions.items())]
    if "seed" in made:
        said.append(f"seed {made['seed']}")
    processor = [machine["processor"]] if "processor" in machine else []
    if machine.get("load_before") is not None:
        processor.append(f"load {machine['load_before']:.1f} before")
    said.append(", ".join([f"Python {machine['python']}", machine["system"], f"{machine['cores']} cores", *processor]))
    return f"- [{name}.json](benchmarks/{name}.json): {'; '.join(said)}."


_TOP = """\
# Benchmarks

{answers}

Everything here ran offline and without a model. The scripted agent of the first part reads without fault and always
looks: its scores are the ceiling of a mechanism, not what a model would reach with it. Run it again with
`make bench ARGS="--save"`, or name the sections, as in `make bench ARGS="recall needed --save"`; this page is made from
the [raw results](benchmarks), never by hand. `make peers` installs the peers, each in an environment of its own. With a
key, `python -m bench.with_model --model NAME` has a real model do the tasks of the first part.
"""

_END = """\
## What these numbers don't show

- How well a model uses the tools, or how often it forgets to look. No model ran.
- Whether an answer was any worse for what had left: only whether details could still be had.
- Your machine. Times depend on it and on what else it does: compare ways within one table, never across tables.
- A peer at its best. Each ran with its defaults and our limit where it has one, on one kind of session, without the
  models that some of them would ask.

## How it was made

{made}
"""

_PARTS: Mapping[str, Callable[[Result], Iterator[str]]] = {
    "recall": recall_parts.recall,
    "needed": recall_parts.needed,
    "rereads": recall_parts.rereads,
    "graded": timing_parts.graded,
    "peers": timing_parts.peers,
    "roundtrips": timing_parts.roundtrips,
    "crowd": timing_parts.crowd,
}


if __name__ == "__main__":
    write()
