"""Who works long in a thread pauses for the others: after work of its own, and less where they are busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openmem_hook import compactor
from openmem_hook.store import session, store, yielder
from openmem_hook.store.yielder import WORK_SHARE, Yielder
from tests.harness.outage import Client


class Machine:
    """A clock, a thread's own time, and how long a pause lasts before the thread has its turn again."""

    def __init__(self) -> None:
        self.now, self.worked, self.pauses, self.back_after = 100.0, 0.0, 0, 0.0001

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.worked

    def sleep(self, _: float) -> None:
        self.pauses += 1
        self.now += self.back_after

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(yielder, "time", made)
    return made


def test_work_pauses_as_often_as_was_asked(machine: Machine) -> None:
    pause = Yielder(0.002)
    for _ in range(1_000):
        machine.work(0.0001)
        pause()
    assert 45 <= machine.pauses <= 50


def test_time_in_which_others_ran_is_no_work(machine: Machine) -> None:
    pause = Yielder(0.002)
    for _ in range(100):
        machine.now += 0.005
        pause()
    assert machine.pauses == 0


def test_where_others_are_busy_most_time_stays_for_the_work(machine: Machine) -> None:
    machine.back_after = 0.01
    pause, begun = Yielder(0.002), machine.now
    for _ in range(10_000):
        machine.work(0.0001)
        pause()
    assert machine.worked / (machine.now - begun) > 0.95 * WORK_SHARE / (WORK_SHARE + 1)


async def test_a_history_seen_for_the_first_time_pauses_between_its_messages(new_hook, monkeypatch) -> None:
    """When they are looked at, when their rows are made, and when these are written."""
    called = []

    class Counted:
        def __call__(self) -> None:
            called.append(1)

    for module in (compactor, store, session):
        monkeypatch.setattr(module, "Yielder", Counted)
    client = Client(new_hook(), "chat")
    client.at = len(client.requests) - 1
    await client.go_on()
    assert len(called) >= 3 * len(client.requests[-1]["messages"])
