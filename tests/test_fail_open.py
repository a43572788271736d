"""L10: whatever fails, the client's request goes through, legal, with the edits already known, and the store is
used again when it can be, without a restart."""

from __future__ import annotations

import pytest

from tests.kit.builders import Format
from tests.outage import DAMAGES, FORMATS, STRIKES, TIGHT, Client, Store, canonical, messages_of

formats = pytest.mark.parametrize("fmt", FORMATS)


@pytest.mark.parametrize("strike", STRIKES)
@formats
async def test_a_trimmed_session_goes_on_through_a_fault_and_after_it(new_hook, state_dir, fmt: Format, strike: str) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.until_trimmed()
    with STRIKES[strike](store):
        await client.go_on(3)
        assert client.trimmed, "the edits already known were not made"
    await client.go_on(3)
    assert client.trimmed
    store.assert_sound()
    kept = store.kept()
    assert sorted(kept) == sorted(canonical(m) for m in messages_of(client.requests[client.at - 1]))


@pytest.mark.parametrize("damage", DAMAGES)
@formats
async def test_a_trimmed_session_goes_on_after_its_store_was_damaged(new_hook, state_dir, fmt: Format, damage: str) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.until_trimmed()
    with DAMAGES[damage](store):
        await client.go_on(4)
    assert client.trimmed
