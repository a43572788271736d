"""The tables of the three formats as cases: `@every` runs a test for each row, `@every_object` for each object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from openmem_hook.facts import facts_of_message
from openmem_hook.formats import ADAPTERS
from openmem_hook.model import Adapter, Facts, Format, Part
from tests.formats import anthropic_examples, chat_examples, responses_examples
from tests.formats.examples import Example

TABLES: Mapping[Format, Mapping[str, Example]] = {
    "anthropic": anthropic_examples.EXAMPLES,
    "chat": chat_examples.EXAMPLES,
    "responses": responses_examples.EXAMPLES,
}
ROWS = [(adapter, name, row) for adapter in ADAPTERS for name, row in TABLES[adapter.name].items()]
CASES = [pytest.param(adapter, row, id=f"{adapter.name}: {name}") for adapter, name, row in ROWS]
OBJECTS = [case for case, (_, _, row) in zip(CASES, ROWS, strict=True) if isinstance(row.raw, dict)]

every = pytest.mark.parametrize(("adapter", "row"), CASES)
every_object = pytest.mark.parametrize(("adapter", "row"), OBJECTS)


def facts_of(adapter: Adapter, raw: Any) -> Facts:
    return facts_of_message(adapter, raw, 0)


def without_identity(parts: list[Part]) -> list[Part]:
    return [replace(part, identity=None) for part in parts]
