"""Installs the clients, runs the suite, and writes down what came of it.

    python -m tests.clients [NAME ...]      all rows, or those whose names begin so: claude-code-2.1.332, codex

Options are pytest's. Results of rows that ran whole go into `results.json` and from there into docs/clients.md; those
of others stay.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from . import page
from .drivers import CLIENTS

SUITE = Path(__file__).parents[1] / "test_clients.py"


class Collector:
    """What each test came to, by client and check."""

    def __init__(self) -> None:
        self.found: page.Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            client, check = page.check_of(report.nodeid)
            self.found.setdefault(client, {})[check] = report.outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    given, options = parser.parse_known_args()
    names = tuple(given.names)
    wanted = [client for client in CLIENTS if not names or client.name.startswith(names)]
    if not wanted:
        parser.error(f"the clients are: {', '.join(client.name for client in CLIENTS)}")
    for install in {client.install for client in wanted if client.install.missing()}:
        print(f"installing {install.package}@{install.version}", flush=True)
        install.install()
    collector = Collector()
    chosen = " or ".join(client.name for client in wanted)
    code = pytest.main([str(SUITE), "-m", "clients", "-k", chosen, *options], plugins=[collector])
    page.write(collector.found)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
