"""The two-party commit of a decision, between the thread that writes it and the request that waits for it.

A decision's bytes are sent only if it is recorded. What is recorded and was not sent is undone or abandoned; where the
client hung up while it was being committed it stands, since the client comes back with the same history:

              ┌─────────┐  leave(): the client hung up            ┌──────┐
              │ waiting ├────────────────────────────────────────►│ left │  nothing is written
              └──┬───┬──┘                                         └──────┘
                 │   │     give_up(): the deadline is over    ┌──────────────┐
        begin(): │   └───────────────────────────────────────►│ sent without │  messages are written, edits are not;
    about to     ▼                                            └──────────────┘  one committed meanwhile is abandoned
    commit    ┌─────────┐  give_up(): its grace is over, too         ▲
              │ writing ├────────────────────────────────────────────┘
              └──┬──────┘
       commit(): │
    it stands    ▼
              ┌───────────┐
              │ committed │  the request sends these bytes, whatever the deadline says
              └───────────┘

Every change of state happens under one lock, so the two parties can't believe different things.
"""

from __future__ import annotations

import threading
from typing import Literal

HandshakeState = Literal["waiting", "writing", "committed", "sent without", "left"]

Permission = Literal["all", "rows", "nothing"]
"""What of a decision may be written: "rows" where its messages were sent without its edits."""


class NotWaitedForError(Exception):
    """Nobody waits for this decision any more; none of its edits was recorded."""


class Handshake:
    """What the writer of one decision and the request that waits for it agree on. Either may call at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: HandshakeState = "waiting"

    def begin(self) -> Permission:
        """What the writer may write; from now on the one who waits holds out a little longer."""
        with self._lock:
            if self._state == "left":
                return "nothing"
            if self._state == "sent without":
                return "rows"
            self._state = "writing"
            return "all"

    def commit(self) -> bool:
        """The writer has committed; False where the request was sent without the decision meanwhile."""
        with self._lock:
            if self._state == "writing":
                self._state = "committed"
            return self._state != "sent without"

    def give_up(self, *, grace: bool) -> bool:
        """Send the request without the decision. False where that is not to be done: it is committed, or, with `grace`,
        about to be."""
        with self._lock:
            if self._state == "committed" or (grace and self._state == "writing"):
                return False
            self._state = "sent without"
            return True

    def leave(self) -> None:
        """The client is gone: nothing is sent. What is being committed goes on, and stands."""
        with self._lock:
            if self._state == "waiting":
                self._state = "left"

    def check(self) -> None:
        """Raises NotWaitedForError where there is no use in beginning."""
        if self._state in ("sent without", "left"):
            raise NotWaitedForError
