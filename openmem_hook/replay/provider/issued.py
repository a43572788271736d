"""What a provider signed or encrypted, and therefore recognises when it comes back.

Real providers verify a signature cryptographically; remembering what was given out has the same effect as
long as the fake lives. Only values with the kit's own mark are judged: bodies written by hand may carry any
signature.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

SIGNATURE_MARK = "kitsig"
CIPHER_MARK = "kitenc"


@dataclass(slots=True)
class Issued:
    """Opaque values given out so far. `encrypted` maps ids to ciphers, `ciphers` the other way, and
    `response_of` an output item's id to its response."""

    thinking: dict[str, str] = field(default_factory=dict)
    redacted: set[str] = field(default_factory=set)
    encrypted: dict[str, str] = field(default_factory=dict)
    ciphers: dict[str, str] = field(default_factory=dict)
    response_of: dict[str, str] = field(default_factory=dict)
    reasoning_before: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sign(self, signature: str, text: str) -> None:
        with self.lock:
            self.thinking[signature] = text

    def encrypt(self, item_id: str, blob: str) -> None:
        with self.lock:
            self.encrypted[item_id] = blob
            self.ciphers[blob] = item_id

    def respond(self, response_id: str, item_ids: list[str]) -> None:
        """Records one response: the items of it, and which reasoning item each other item came after."""
        reasoning = ""
        with self.lock:
            for item_id in item_ids:
                self.response_of[item_id] = response_id
                if item_id in self.encrypted:
                    reasoning = item_id
                elif reasoning:
                    self.reasoning_before[item_id] = reasoning

    def reasoning_id(self, item_id: str, blob: str) -> str:
        """The id of a reasoning item; some clients drop it, then its cipher still tells."""
        return item_id or self.ciphers.get(blob, "")

    def thinking_fault(self, signature: str, text: str) -> bool:
        if signature in self.thinking:
            return self.thinking[signature] != text
        return bool(self.thinking) and signature.startswith(SIGNATURE_MARK)

    def redacted_fault(self, data: str) -> bool:
        return bool(self.redacted) and data.startswith(CIPHER_MARK) and data not in self.redacted

    def cipher_fault(self, item_id: str, blob: str) -> bool:
        if item_id in self.encrypted:
            return self.encrypted[item_id] != blob
        return bool(self.encrypted) and blob.startswith(CIPHER_MARK) and blob not in self.ciphers
