"""A mapping of bounded size, for whatever a long-running process remembers by names that others choose."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class BoundedMap(Generic[K, V]):
    """A mapping that forgets its least recently used entries beyond `limit` of them.

    `get` and `put` count as a use, `in` doesn't. Each operation is safe to call from any thread; nothing holds
    between two of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()  # even a look-up moves its entry, and moving takes two steps

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: D | None = None) -> V | D | None:
        """The key's value, which becomes the most recently used; `default` where there is none."""
        with self._lock:
            if key not in self._entries:
                return default
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Sets the key's value, which becomes the most recently used, and drops what is beyond the limit."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.limit:
                self._entries.popitem(last=False)

    @overload
    def pop(self, key: K) -> V | None: ...

    @overload
    def pop(self, key: K, default: D) -> V | D: ...

    def pop(self, key: K, default: D | None = None) -> V | D | None:
        """Removes the key and returns its value; `default` where there is none."""
        with self._lock:
            return self._entries.pop(key, default)

    def clear(self) -> None:
        """Removes everything."""
        with self._lock:
            self._entries.clear()

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._entries

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)
