"""The mistakes that `make mutations` makes can be made: each text is in its file once, and its tests exist."""

from __future__ import annotations

import re

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_text_and_its_tests(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.before) == 1
    for test in mutation.tests:
        if test.startswith("tests/"):
            file, _, name = test.partition("::")
            source = (ROOT / file).read_text()
            assert not name or re.search(rf"def {name}\(", source), f"{file} has no {name}"
