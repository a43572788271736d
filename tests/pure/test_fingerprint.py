"""What identity is computed from: canonical JSON, digests, chained fingerprints and short ids.

The hexadecimal values are those of the first release. Stores hold them, so they never change.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook import fingerprint
from openmem_hook.fingerprint import ROOT, canonical, chain, digest, dump, load, position_key, short_id

OWN = bytes(range(16))
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


# --- what stores hold -----------------------------------------------------------------------------------------

DIGESTS: list[tuple[Any, str]] = [
    ([], "41af1ee3b09f7806ccdb941dd4e1e7ec"),
    (["user", [["text", "hi"]]], "ae653d3e314ff2ca9b92e0f8d323db22"),
    ({"b": 1, "a": [1, 2.5, None, True]}, "541ef51400a4f5f534b2c73268dc5aee"),
    (["\ud800", 10**20], "8f4437e170e000ef94e1224a497236c7"),
    ({"a": float("nan")}, "de98e5e43025762ebd31638eb4d98135"),
]
IDS: list[tuple[tuple[bytes | str, ...], str]] = [
    (("user", "a"), "1f3966e3392c845a"),
    ((b"user", "a"), "1f3966e3392c845a"),
    (("usera",), "45b6c8b04c8c9b4b"),
    (("\ud800",), "87d46bcac58f40cc"),
    ((), "56fed26dde0a070c"),
]


@pytest.mark.parametrize(("identity", "in_hex"), DIGESTS)
def test_a_digest_is_that_of_the_first_release(identity: Any, in_hex: str) -> None:
    assert digest(identity).hex() == in_hex


def test_fingerprints_are_those_of_the_first_release() -> None:
    assert ROOT.hex() == "8686220409865180cfef884d8c80f42a"
    assert chain(ROOT, OWN).hex() == "f8602abe636d4d28095f681b51e3bff2"
    assert position_key(ROOT, OWN).hex() == "c401a0688246046cc61782550961b78d"


@pytest.mark.parametrize(("parts", "name"), IDS)
def test_a_short_id_is_that_of_the_first_release(parts: tuple[bytes | str, ...], name: str) -> None:
    assert short_id(*parts) == name


# --- the canonical form ---------------------------------------------------------------------------------------

MARKER = {"type": "ephemeral"}
CANONICAL: dict[str, tuple[Any, Any]] = {
    "a breakpoint": ({"type": "text", "cache_control": MARKER}, {"type": "text"}),
    "a breakpoint at any depth": ([{"a": [{"cache_control": MARKER, "b": 1}]}], [{"a": [{"b": 1}]}]),
    "a whole float": ([1.0, -2.0], [1, -2]),
    "a float with a fraction": ([1.5], [1.5]),
    "a float that no integer equals for sure": ([2.0**53], [2.0**53]),
    "infinity": ([float("inf")], [float("inf")]),
    "true is no number": ([True, 1], [True, 1]),
    "keys of other types": ({1: "a"}, {"1": "a"}),
    "text": ("1.0", "1.0"),
}


@pytest.mark.parametrize("case", CANONICAL)
def test_the_canonical_form_leaves_out_what_clients_vary(case: str) -> None:
    value, form = CANONICAL[case]
    assert repr(canonical(value)) == repr(form)


def test_the_order_of_keys_makes_no_difference_and_that_of_items_does() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1, 2]) != digest([2, 1])


@given(any_json)
def test_the_canonical_form_of_a_canonical_form_is_the_same(value: Any) -> None:
    once = canonical(value)
    assert canonical(once) == once
    assert digest(canonical(once)) == digest(once)


# --- bytes and back -------------------------------------------------------------------------------------------

ODD_VALUES: list[Any] = [
    "\ud800",
    {"\udfff": ["a\0b"]},
    10**30,
    [-(10**25), 2**64, 2**63, 1.5],
    "1234567890123456789012345",
    {"a": "\ud800", "b": 10**30},
]


@pytest.mark.parametrize("value", ODD_VALUES)
def test_what_the_fast_parser_refuses_or_rounds_comes_back_as_it_was(value: Any) -> None:
    back = load(dump(value))
    assert (back, type(back)) == (value, type(value))


@given(any_json)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    assert load(dump(value)) == value
    assert json.loads(dump(value)) == value


# --- chains and ids -------------------------------------------------------------------------------------------


def test_a_fingerprint_names_the_message_and_its_past() -> None:
    other = digest("another message")
    assert len({chain(ROOT, OWN), chain(ROOT, other), chain(chain(ROOT, other), OWN), position_key(ROOT, OWN)}) == 4
    assert {len(chain(ROOT, OWN)), len(position_key(ROOT, OWN)), len(ROOT)} == {fingerprint.SIZE}


def test_the_parts_of_a_short_id_do_not_run_together() -> None:
    ids = [short_id("a", "bc"), short_id("ab", "c"), short_id("abc"), short_id("abc", "")]
    assert len(set(ids)) == len(ids)
    assert {len(name) for name in ids} == {16}
