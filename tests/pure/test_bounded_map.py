"""The bounded mapping: what it forgets, what counts as a use, and that threads don't break it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from openmem_hook.bounded_map import BoundedMap


def test_the_least_recently_used_entry_goes_first() -> None:
    memory: BoundedMap[str, int] = BoundedMap(2)
    memory.put("a", 1)
    memory.put("b", 2)
    assert memory.get("a") == 1
    memory.put("c", 3)
    assert ("a" in memory, "b" in memory, "c" in memory) == (True, False, True)


def test_setting_a_value_again_is_a_use_and_no_new_entry() -> None:
    memory: BoundedMap[str, int] = BoundedMap(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        memory.put(key, value)
    assert [memory.get(key) for key in "abc"] == [3, None, 4]
    assert len(memory) == 2


def test_asking_whether_a_key_is_there_is_no_use() -> None:
    memory: BoundedMap[str, int] = BoundedMap(2)
    memory.put("a", 1)
    memory.put("b", 2)
    assert "a" in memory
    memory.put("c", 3)
    assert "a" not in memory


def test_a_missing_key_gives_the_default() -> None:
    memory: BoundedMap[str, int] = BoundedMap(2)
    assert (memory.get("a"), memory.get("a", 0), memory.pop("a"), memory.pop("a", 0)) == (None, 0, None, 0)


def test_a_removed_entry_is_gone_and_makes_room() -> None:
    memory: BoundedMap[str, int] = BoundedMap(1)
    memory.put("a", 1)
    assert memory.pop("a") == 1
    assert len(memory) == 0
    memory.put("b", 2)
    memory.clear()
    assert memory.get("b") is None


def test_a_value_may_be_none() -> None:
    memory: BoundedMap[str, None] = BoundedMap(2)
    memory.put("a", None)
    assert "a" in memory
    assert memory.get("a", "absent") is None


@pytest.mark.parametrize("limit", [1, 64])
def test_threads_neither_break_it_nor_exceed_its_limit(limit: int) -> None:
    memory: BoundedMap[int, int] = BoundedMap(limit)

    def work(start: int) -> None:
        for step in range(5_000):
            key = (start + step) % (2 * limit)
            memory.put(key, key)
            assert memory.get(key, key) == key
            memory.pop((key + 1) % (2 * limit))
            assert len(memory) <= limit

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, start) for start in range(4)]:
            done.result()
