"""`make check` fails where a wire format lacks anything of its protocol, and says what it lacks.

Each adapter is copied once for each member of the protocol, without that member. All copies are checked in one run
of mypy, with the few modules that an adapter imports.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openmem_hook.formats import ADAPTERS
from openmem_hook.model import Editor, Finisher, Reader

PACKAGE = Path(__file__).parents[2] / "openmem_hook"
IMPORTS = ("model.py", "facts.py", "fingerprint.py", "tokens.py", "formats")
FORMATS = [adapter.name for adapter in ADAPTERS]
PROTOCOLS: tuple[type, ...] = (Reader, Editor, Finisher)


def members_of(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


CASES = [(fmt, member) for fmt in FORMATS for protocol in PROTOCOLS for member in members_of(protocol)]


def source_of(fmt: str) -> str:
    return (PACKAGE / "formats" / f"{fmt}.py").read_text("utf-8")


def definitions(source: str) -> dict[str, ast.stmt]:
    """The functions and values of a module, by name, in their order."""
    out: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            out[node.name] = node
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name):
            out[target.id] = node
    return out


def without(source: str, member: str) -> str:
    node = definitions(source)[member]
    lines = source.splitlines(keepends=True)
    return "".join(lines[: node.lineno - 1] + lines[node.end_lineno :])


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says where each copy, and each whole adapter, is assigned to an `Adapter`; by the module's name."""
    folder = tmp_path_factory.mktemp("adapters")
    package = folder / "openmem_hook"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in IMPORTS:
        copy = shutil.copytree if (PACKAGE / name).is_dir() else shutil.copy
        copy(PACKAGE / name, package / name)
    for fmt, member in CASES:
        (package / "formats" / f"{fmt}_without_{member}.py").write_text(without(source_of(fmt), member), "utf-8")
    modules = [*FORMATS, *(f"{fmt}_without_{member}" for fmt, member in CASES)]
    lines = ["from openmem_hook.model import Adapter", f"from openmem_hook.formats import {', '.join(modules)}"]
    lines += [f"{module}_: Adapter = {module}" for module in modules]
    (folder / "check.py").write_text("\n".join(lines), "utf-8")
    options = ["--config-file=", "--no-incremental", "--ignore-missing-imports"]
    command = [sys.executable, "-m", "mypy", *options, "check.py"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, run.stdout + run.stderr
    out = dict.fromkeys(modules, "")
    for number, words in re.findall(r"^check\.py:(\d+): (.*)$", run.stdout, re.MULTILINE):
        out[lines[int(number) - 1].partition("_:")[0]] += f"{words}\n"
    return out


@pytest.mark.parametrize(("fmt", "member"), CASES)
def test_an_adapter_that_lacks_something_fails_the_check(complaints: dict[str, str], fmt: str, member: str) -> None:
    complaint = complaints[f"{fmt}_without_{member}"]
    assert "is missing following" in complaint
    assert complaint.split()[-1] == member


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_whole_adapter_passes_and_make_check_looks_at_it(complaints: dict[str, str], fmt: str) -> None:
    assert complaints[fmt] == ""
    assignments = [
        node.value.id
        for node in ast.parse(source_of("__init__")).body
        if isinstance(node, ast.AnnAssign)
        and ast.unparse(node.annotation) == "Adapter"
        and isinstance(node.value, ast.Name)
    ]
    assert fmt in assignments


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_adapter_has_its_functions_under_the_headings_of_the_protocols(fmt: str) -> None:
    source = source_of(fmt)
    headings = [
        (source[: match.start()].count("\n") + 1, match[1])
        for match in re.finditer(r"^# --- (\w+) -", source, re.MULTILINE)
    ]
    assert [name for _, name in headings] == [protocol.__name__ for protocol in PROTOCOLS]
    lines = {name: node.lineno for name, node in definitions(source).items()}
    for (start, _), (end, _), protocol in zip(headings, [*headings[1:], (10**6, "")], PROTOCOLS, strict=True):
        places = [lines[name] for name in members_of(protocol)]
        assert places == sorted(places)
        assert start < places[0]
        assert places[-1] < end
