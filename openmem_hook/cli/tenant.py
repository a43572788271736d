"""Which tenant's sessions a command on the gateway's host is about."""

from __future__ import annotations

import re
from pathlib import Path

from openmem_hook.cli.base import CannotRunError
from openmem_hook.store import names

_FOLDER = re.compile(r"[0-9a-f]{32}")
_OWNER = re.compile(r"(user|key|team):.+|operator|local")


def folder_of(state: Path, tenant: str) -> str:
    """The name of the tenant's folder in `state`.

    `tenant` is that name, or the owner it was made for: user:ID, key:HASH, team:ID, operator or local; anything else
    is a user's ID. Empty, it means the only tenant there is. Raises CannotRunError where there is no such tenant or
    more than one, which names none of those that are there.
    """
    if tenant:
        owner = tenant if _OWNER.fullmatch(tenant) else f"user:{tenant}"
        folder = tenant if _FOLDER.fullmatch(tenant) else names.tenant_folder(owner)
        if not (state / folder).is_dir():
            raise CannotRunError("nothing is stored for this tenant")
        return folder
    folders = [path.name for path in state.iterdir() if _FOLDER.fullmatch(path.name)] if state.is_dir() else []
    if not folders:
        raise CannotRunError(f"nothing is stored in {state}; is this the gateway's state_dir?")
    if len(folders) > 1:
        raise CannotRunError(
            "there is more than one tenant: say which with --tenant user:ID, key:HASH, team:ID or operator"
        )
    return folders[0]
