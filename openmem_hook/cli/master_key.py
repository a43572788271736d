"""The gateway's master key, where nobody has set one: a file, made once, that its owner alone can read."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from openmem_hook.cli.base import CannotRunError

VARIABLE = "LITELLM_MASTER_KEY"
"""LiteLLM refuses to run without a key in this variable or in its file."""


def key_file(environ: Mapping[str, str]) -> Path:
    """Where the key lies. Raises CannotRunError for the home of a user that doesn't exist."""
    home = environ.get("HOME") or str(Path.home())
    folder = environ.get("OPENMEM_STATE_DIR") or f"{home}/.local/share/openmem"
    try:
        return Path(folder).expanduser() / "master_key"
    except RuntimeError as error:
        raise CannotRunError(f"OPENMEM_STATE_DIR is {folder}: there is no such user") from error


def read_or_make(file: Path) -> str:
    """The key in this file, which is made where it is missing. Two that start at once get the same one.

    Raises CannotRunError where the file can't be read or made, holds no key, or can be read by others.
    """
    try:
        if not file.exists():
            _make(file)
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CannotRunError(f"{file} can be read by others: chmod 600 it, or delete it to get a new key")
        key = file.read_text("utf-8").strip()
    except OSError as error:
        raise CannotRunError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CannotRunError(f"{file} holds no key: delete it to get a new one") from error
    if not key:
        raise CannotRunError(f"{file} is empty: delete it to get a new key")
    return key


def _make(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".master_key.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, f"sk-{secrets.token_urlsafe(32)}\n".encode())
        os.link(draft, file)
    except FileExistsError:
        pass  # someone else was first; theirs counts
    finally:
        os.close(handle)
        draft.unlink()
