"""The agents that people use, in the versions that the suite runs, in a folder of the checkout."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".clients"
NPM = (
    "npm", "install", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error", "--fetch-retries", "1",
)  # fmt: skip
PATIENCE_S = 600.0
UNREACHABLE = (
    "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "EHOSTUNREACH", "ETIMEDOUT",
    "SELF_SIGNED_CERT_IN_CHAIN", "DEPTH_ZERO_SELF_SIGNED_CERT", "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
    "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
)  # fmt: skip
"""Node's names for a registry that doesn't answer, or whose certificate this machine doesn't trust."""


class InstallError(Exception):
    """A client could not be installed. `unreachable`: npm or its registry is not there, so that nothing is wrong with
    the client."""

    def __init__(self, why: str, *, unreachable: bool) -> None:
        super().__init__(why)
        self.unreachable = unreachable


@dataclass(frozen=True, slots=True)
class Install:
    name: str
    version: str
    package: str
    binary: str

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"

    @property
    def command(self) -> Path:
        return self.folder / "node_modules" / ".bin" / self.binary

    @property
    def ready(self) -> Path:
        """Made last: an install that was killed is none."""
        return self.folder / ".ready"

    def missing(self) -> bool:
        return not self.ready.exists()

    def install(self) -> None:
        """A folder of its own: two versions of one package live side by side. An attempt that fails leaves nothing.

        Raises InstallError with npm's own words.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            self._install()
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self.ready.touch()

    def _install(self) -> None:
        npm = [*NPM, "--prefix", str(self.folder), f"{self.package}@{self.version}"]
        try:
            subprocess.run(npm, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        except FileNotFoundError as error:
            raise InstallError("npm, which comes with Node.js, is not on the PATH", unreachable=True) from error
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"npm took more than {PATIENCE_S:g} s", unreachable=True) from error
        except subprocess.CalledProcessError as error:
            unreachable = any(name in error.stderr for name in UNREACHABLE)
            raise InstallError(" ".join(error.stderr.split()), unreachable=unreachable) from error


CLAUDE_OLD = Install("claude-code", "2.1.197", "@anthropic-ai/claude-code", "claude")
CLAUDE_NEW = Install("claude-code", "2.1.332", "@anthropic-ai/claude-code", "claude")
CODEX = Install("codex", "0.171.0", "@openai/codex", "codex")
OPENCODE = Install("opencode", "1.18.33", "opencode-ai", "opencode")
