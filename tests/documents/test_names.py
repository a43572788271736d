"""Names say what a thing is: none is a bare participle, which says only that something was done."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("openmem_hook", "demo")

IRREGULAR = frozenset(
    """asked begun bought bound broken brought built caught chosen cut dealt done drawn driven fed felt forgotten fought
    found frozen given gone grown heard held hidden kept known laid led left lent lost made meant met paid said seen
    sent shown sold sought spent spoken stood struck stuck sworn taken taught thought thrown told understood won worn
    written""".split()  # noqa: SIM905 - a list of words
) - {"bound", "cut"}
"""Participles that don't end in -ed. A bound and a cut are things."""

NO_PARTICIPLE = frozenset({"embed", "exceed", "feed", "need", "proceed", "red", "seed", "shed", "speed"})
"""Words that end in -ed all the same."""

GIVEN = frozenset({"enabled", "required"})
"""Names that a setting and JSON Schema fix."""


def is_bare_participle(name: str) -> bool:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    word = words[0].lower() if len(words) == 1 else ""
    return word in IRREGULAR or (len(word) > 3 and word.endswith("ed") and word not in NO_PARTICIPLE | GIVEN)


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What the code itself names, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_is_a_bare_participle(folder: str) -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in names_in(ast.parse(path.read_text("utf-8")))
        if is_bare_participle(name)
    ]
    assert bare == []


@pytest.mark.parametrize("name", ["found", "_told", "FROZEN", "Recorded", "measured", "known"])
def test_a_bare_participle_is_seen(name: str) -> None:
    assert is_bare_participle(name)


@pytest.mark.parametrize("name", ["known_rows", "OpenSession", "speed", "cut", "BoundedMap", "read", "enabled"])
def test_other_names_are_not(name: str) -> None:
    assert not is_bare_participle(name)
