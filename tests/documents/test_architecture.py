"""The architecture page says what is there: its links, its drawing, the tests that hold the laws."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from openmem_hook.store import handshake

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)")
CITATION = re.compile(r"design section|\bV-[A-Z]:|\bBC-\d|\bcases\.md|\bdesign\.md|\bsection \d+ of the design")


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text("utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}{anchor}"


def test_the_commit_is_drawn_as_beside_its_code() -> None:
    page = re.search(r"```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert page is not None
    assert handshake.__doc__ is not None
    assert page[1].rstrip() in handshake.__doc__


def test_each_law_names_tests_that_are_there() -> None:
    rows = re.findall(r"^\| (L\d+)[^|]*\|[^|]*\|([^|]*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [law for law, _ in rows] == [f"L{n}" for n in range(1, 13)]
    laws = (ROOT / "tests" / "laws" / "test_laws.py").read_text("utf-8")
    for law, tests in rows:
        names = re.findall(r"`([^`]+)`", tests)
        assert names, law
        for name in names:
            if name.endswith(".py"):
                assert (ROOT / name).exists(), name
            else:
                assert f"def {name.removesuffix('…')}" in laws, name


def test_every_module_that_the_page_names_is_there() -> None:
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", PAGE.read_text("utf-8")):
        places = [ROOT / name, ROOT / "openmem_hook" / name, *(ROOT / "openmem_hook").rglob(name)]
        assert any(path.exists() for path in places), name


def test_nothing_cites_a_document_that_is_not_in_the_repository() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    found = []
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".sql", ".yaml") and path != Path(__file__) and path.exists():
            found += [f"{name}: {match[0]}" for match in CITATION.finditer(path.read_text("utf-8"))]
    assert found == []
