"""Long work in a thread lets the event loop have its turn."""

from __future__ import annotations

import time

SEARCH_S = 0.001
REQUEST_S = 0.002
"""Seconds of Python's work between two moments in which others may run. Without any, the loop waits for each of its
steps until the interpreter switches threads (5 ms and more). Each costs what a sleep does, 0.1 to 0.5 ms, so a request
has fewer of them: with 2 ms the largest gap beside 2 MB seen for the first time fell from 39 to 18 ms (`make bench
ARGS=speed`), about what a thread leaves that only counts."""


class Breather:
    """Called often enough in a loop, it holds nobody up."""

    def __init__(self, every_s: float = REQUEST_S) -> None:
        self._every_s = every_s
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > self._every_s:
            time.sleep(0.000_05)
            self._since = time.perf_counter()
