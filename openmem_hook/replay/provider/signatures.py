"""What a provider signed or encrypted, and therefore recognises when it comes back.

Real providers verify a signature cryptographically; remembering what was handed out has the same effect as
long as the fake lives. Only values with the kit's own mark are judged: bodies written by hand may carry any
signature.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

SIGNATURE_MARK = "kitsig"
CIPHER_MARK = "kitenc"


@dataclass(slots=True)
class SignatureRegistry:
    """The opaque values of all responses so far."""

    thinking: dict[str, str] = field(default_factory=dict)
    """Signature → the text that it signs."""

    ciphers: dict[str, str] = field(default_factory=dict)
    """Id of a reasoning item → its encrypted content."""

    reasoning_of: dict[str, str] = field(default_factory=dict)
    """The other way: encrypted content → id of its reasoning item."""

    response_of: dict[str, str] = field(default_factory=dict)
    """Id of an output item → its response."""

    reasoning_before: dict[str, str] = field(default_factory=dict)
    """Id of an output item → the reasoning item that it came after."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def sign(self, signature: str, text: str) -> None:
        with self.lock:
            self.thinking[signature] = text

    def encrypt(self, item_id: str, cipher: str) -> None:
        with self.lock:
            self.ciphers[item_id] = cipher
            self.reasoning_of[cipher] = item_id

    def respond(self, response_id: str, item_ids: list[str]) -> None:
        """Records one response: the items of it, and which reasoning item each other item came after."""
        reasoning = ""
        with self.lock:
            for item_id in item_ids:
                self.response_of[item_id] = response_id
                if item_id in self.ciphers:
                    reasoning = item_id
                elif reasoning:
                    self.reasoning_before[item_id] = reasoning

    def reasoning_id(self, item_id: str, cipher: str) -> str:
        """The id of a reasoning item; some clients drop it, then its cipher still says it."""
        return item_id or self.reasoning_of.get(cipher, "")

    def thinking_fault(self, signature: str, text: str) -> bool:
        """Whether the signature belongs to another text, or has the kit's mark and was never handed out."""
        if signature in self.thinking:
            return self.thinking[signature] != text
        return bool(self.thinking) and signature.startswith(SIGNATURE_MARK)

    def cipher_fault(self, item_id: str, cipher: str) -> bool:
        """The same of encrypted reasoning."""
        if item_id in self.ciphers:
            return self.ciphers[item_id] != cipher
        return bool(self.ciphers) and cipher.startswith(CIPHER_MARK) and cipher not in self.reasoning_of
