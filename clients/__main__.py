"""Installs the clients, runs the suite, and writes down what came of it.

    python -m clients                     all rows
    python -m clients codex opencode      those whose names begin so
    python -m clients codex -- -x         what stands behind -- goes to pytest

Results of rows that ran whole go into `results.json` and from there into docs/clients.md; those of others stay.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from . import page
from .drivers import CLIENTS, Client
from .installs import Install, InstallError
from .recording import LEARN

SUITE = Path(__file__).parents[1] / "tests" / "clients" / "test_installed_clients.py"
PARALLEL = ("-n", "2", "--dist", "loadgroup", "-vv")


class Collector:
    """What each test came to, by client and check."""

    def __init__(self) -> None:
        self.found: page.Checks = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            client, check = page.check_of(report.nodeid)
            self.found.setdefault(client, {})[check] = report.outcome


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else list(words)
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginning of a client's name; default: all")
    parser.add_argument("--record", action="store_true", help="take what the clients send now as what is expected")
    parser.add_argument("--check", action="store_true", help="write no results")
    parser.add_argument(
        "--if-reachable",
        action="store_true",
        help="where npm is missing or its registry can't be reached, say so and leave the client out",
    )
    given = parser.parse_args(words[:at])
    unknown = [name for name in given.names if not any(client.name.startswith(name) for client in CLIENTS)]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}. The clients are: {', '.join(c.name for c in CLIENTS)}")
    wanted = [client for client in CLIENTS if not given.names or client.name.startswith(tuple(given.names))]
    missing = dict(_not_installable({client.install for client in wanted}))
    for install, error in missing.items():
        print(f"openmem: {install.name} {install.version} is not installed: {error}", file=sys.stderr)
    if missing and not (given.if_reachable and all(error.unreachable for error in missing.values())):
        return 1
    wanted = [client for client in wanted if client.install not in missing]
    if not wanted:
        print("openmem: no client can be installed here, so none was run", file=sys.stderr)
        return 0
    if given.record:
        os.environ[LEARN] = "1"
    code, found = _run(wanted, words[at + 1 :])
    if not given.check:
        page.write(found)
    if given.record and code == pytest.ExitCode.OK:
        from .scenario import record  # what it imports, pytest wants to import first

        for client in wanted:
            print(f"recording {client.name}", flush=True)
            record(client)
    return code


def _not_installable(installs: set[Install]) -> Iterator[tuple[Install, InstallError]]:
    """Installs what isn't there yet; those that could not be, and why."""
    for install in sorted(installs, key=lambda install: (install.name, install.version)):
        if install.missing():
            print(f"installing {install.package}@{install.version}", flush=True)
            try:
                install.install()
            except InstallError as error:
                yield install, error


def _run(clients: list[Client], options: list[str]) -> tuple[int, page.Checks]:
    collector = Collector()
    code = pytest.main([str(SUITE), "-m", "clients", *PARALLEL, "-k", _chosen(clients), *options], plugins=[collector])
    return int(code), collector.found


def _chosen(clients: list[Client]) -> str:
    """Pytest's expression for these; one name may be the beginning of another."""
    names = [client.name for client in clients]
    others = [c.name for c in CLIENTS if c.name not in names and not any(c.name in name for name in names)]
    return f"({' or '.join(names)})" + "".join(f" and not {name}" for name in others)


if __name__ == "__main__":
    sys.exit(main())
