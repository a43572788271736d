"""Names on disk and in pointers: hashes, never anything from the wire."""

from __future__ import annotations

import hashlib


def _name(kind: bytes, size: int, *parts: str) -> str:
    hasher = hashlib.blake2b(digest_size=size, person=kind)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(8, "big") + raw)
    return hasher.hexdigest()


def tenant_folder(tenant: str) -> str:
    """The tenant's folder: 32 lower-case hex characters, nothing of the tenant to be read in it."""
    return _name(b"openmem tenant", 16, tenant)


def session_name(tenant: str, session_id: str) -> str:
    """The session's name and file: 16 lower-case hex characters, different for each tenant and id."""
    return _name(b"openmem session", 8, tenant, session_id)


def subagent_label(subagent: str) -> str:
    """A client's own name of a sub-agent, as a hash; empty for the main line."""
    return _name(b"openmem thread", 4, subagent) if subagent else ""
