"""The benchmark: `python -m bench [SECTION ...] [--quick] [--json FILE] [--save]`, or `make bench`.

    speed, gateway, load, search, store, memory     figures, those with a target promised by the project
    recall, needed, rereads                         what can still be had of what left
    graded                                          errors of the estimates, by model family
    peers, roundtrips                               beside the peers, in process and through the gateway
    crowd                                           fifty sessions at once through the gateway
    hops                                            one hop to a thread a request, or one a statement

Without a name all of them. Measured on this machine, now. Ends with 1 if a target was missed. `--save` keeps the
results in docs/benchmarks and makes docs/benchmarks.md of them. `make peers` installs the peers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from bench import document
from bench.figures import Measure, Section

SECTIONS = (
    *("speed", "store", "memory", "gateway", "load", "search"),
    *("graded", "recall", "needed", "rereads", "peers", "roundtrips", "crowd", "hops"),
)


def measured(name: str, quick: bool) -> Section:
    run: Measure = import_module(f"bench.{name}").run
    with tempfile.TemporaryDirectory(prefix="openmem-bench-") as folder:
        return run(Path(folder), quick)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="a smaller run, for trying things out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures as JSON, too")
    parser.add_argument("--save", action="store_true", help="keep the results with the documents")
    given = parser.parse_args()
    if given.save and given.quick:
        parser.error("results of a quick run are not kept")
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {unknown[0]}; there are {', '.join(SECTIONS)}")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    found: list[Section] = []
    for name in given.sections or SECTIONS:
        begun, load = time.perf_counter(), os.getloadavg()[0]
        found.append(measured(name, given.quick))
        print(f"\n{found[-1].table()}\n  ({time.perf_counter() - begun:.0f} s)", flush=True)
        if given.save and found[-1].figures:
            document.keep(found[-1], round(load, 2))
    if given.json is not None:
        data = {section.name: [figure.as_data() for figure in section.figures] for section in found}
        given.json.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(figure.met for section in found for figure in section.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
