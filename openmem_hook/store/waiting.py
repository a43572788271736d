"""Who waits for a decision: settles between the thread that writes and the request that may give up on it.

Asked around the commit: a decision is recorded only if its bytes are sent, and sent only if it is recorded.
"""

from __future__ import annotations

import threading

from openmem_hook.store.sessions import Share


class Ticket:
    """One request's. States: waiting, writing, written; or sent without the decision, or gone with the client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "waiting"

    def begin(self) -> Share:
        """What the writer may write; from now on the one who waits holds out a little longer."""
        with self._lock:
            if self._state == "gone":
                return "nothing"
            if self._state == "sent without":
                return "rows"
            self._state = "writing"
            return "all"

    def written(self) -> bool:
        """The writer has committed; False where the request was sent without the decision meanwhile."""
        with self._lock:
            if self._state == "writing":
                self._state = "written"
            return self._state != "sent without"

    def give_up(self, patient: bool) -> bool:
        """Send the request without the decision. False where that is not to be done: it is written, or about to
        be and the one who waits is patient."""
        with self._lock:
            if self._state == "written" or (patient and self._state == "writing"):
                return False
            self._state = "sent without"
            return True

    def go(self) -> None:
        """The client is gone: nothing is sent."""
        with self._lock:
            if self._state == "waiting":
                self._state = "gone"

    @property
    def over(self) -> bool:
        return self._state in ("sent without", "gone")
