"""Long work in a thread lets the event loop have its turn."""

from __future__ import annotations

import time

SEARCH_S = 0.001
REQUEST_S = 0.002
"""Seconds of Python's work between two moments in which others may run. Without any, the loop waits for each of its
steps until the interpreter switches threads (5 ms and more). Each costs what a sleep does, 0.1 to 0.5 ms, so a request
has fewer of them. `make bench ARGS=speed` showed a largest gap of 24 ms without them, 8 ms with them, beside 2 MB seen
for the first time."""

WORK_SHARE = 4.0
"""Where others are busy it takes long to come back. Work then goes on for so many times as long, or it would starve."""


class Yielder:
    """A cooperative yield: called often enough in a loop, the loop holds nobody up."""

    def __init__(self, every_s: float = REQUEST_S) -> None:
        self._every_s = self._rest_s = every_s
        self._due, self._work_s = time.perf_counter() + every_s, time.thread_time()

    def __call__(self) -> None:
        now = time.perf_counter()
        if now < self._due:
            return
        # Only this thread's own work counts: the time may have gone by while others ran.
        rest = self._rest_s - (time.thread_time() - self._work_s)
        if rest > 0:
            self._due = now + rest
            return
        time.sleep(0.000_05)
        back = time.perf_counter()
        self._rest_s = max(self._every_s, WORK_SHARE * (back - now))
        self._due, self._work_s = back + self._rest_s, time.thread_time()
