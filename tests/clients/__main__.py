"""Installs the clients, runs the suite, and writes down what came of it.

    python -m tests.clients [NAME ...]      all rows, or those whose names begin so: claude-code-2.1.332, codex
    python -m tests.clients --record [...]  takes what they send now as what is expected of them
    python -m tests.clients --if-installable [...]
                                            leaves out, and says so, what npm can't install

Other options are pytest's. Results of rows that ran whole go into `results.json` and from there into docs/clients.md;
those of others stay.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import page
from .drivers import CLIENTS, Client
from .installs import Install, InstallError
from .recording import RECORDING

SUITE = Path(__file__).parents[1] / "test_clients.py"
PARALLEL = ("-n", "2", "--dist", "loadgroup", "-vv")


class Collector:
    """What each test came to, by client and check."""

    def __init__(self) -> None:
        self.found: page.Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            client, check = page.check_of(report.nodeid)
            self.found.setdefault(client, {})[check] = report.outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginning of a client's name; default: all")
    parser.add_argument("--record", action="store_true", help="take what the clients send now as what is expected")
    parser.add_argument("--if-installable", action="store_true", help="leave out what npm can't install")
    given, options = parser.parse_known_args()
    names = tuple(given.names)
    wanted = [client for client in CLIENTS if not names or client.name.startswith(names)]
    if not wanted:
        parser.error(f"the clients are: {', '.join(client.name for client in CLIENTS)}")
    missing = dict(_not_installable({client.install for client in wanted}))
    for install, why in missing.items():
        print(f"openmem: {install.name} {install.version} is not installed: {why}", file=sys.stderr)
    if missing and not given.if_installable:
        return 1
    wanted = [client for client in wanted if client.install not in missing]
    if not wanted:
        print("openmem: no client can be installed here, so none was run", file=sys.stderr)
        return 0
    if given.record:
        os.environ[RECORDING] = "1"
    code = _run(wanted, options)
    if given.record and code == pytest.ExitCode.OK:
        from .scenario import record  # what it imports, pytest wants to import first

        for client in wanted:
            print(f"recording {client.name}", flush=True)
            record(client)
    return code


def _not_installable(installs: set[Install]) -> Iterator[tuple[Install, str]]:
    """Installs what isn't there yet; those that could not be, and why."""
    for install in sorted(installs, key=lambda install: (install.name, install.version)):
        if install.missing():
            print(f"installing {install.package}@{install.version}", flush=True)
            try:
                install.install()
            except InstallError as why:
                yield install, str(why)


def _run(clients: list[Client], options: list[str]) -> int:
    collector = Collector()
    chosen = " or ".join(client.name for client in clients)
    ids = [str(SUITE), "-m", "clients", *PARALLEL, "-k", chosen, *options]
    code = pytest.main(ids, plugins=[collector])
    page.write(collector.found)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
