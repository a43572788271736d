"""The agents that people use, in the versions that the suite runs, in a folder of the checkout."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".clients"
NPM = (
    "npm", "install", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error", "--fetch-retries", "1",
)  # fmt: skip


class InstallError(Exception):
    """npm is missing, or could not bring the package."""


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

    def missing(self) -> bool:
        return not self.command.exists()

    def install(self) -> None:
        """A folder of its own: two versions of one package live side by side. An attempt that fails leaves nothing.

        Raises InstallError with npm's own words.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        npm = [*NPM, "--prefix", str(self.folder), f"{self.package}@{self.version}"]
        try:
            subprocess.run(npm, check=True, capture_output=True, text=True)
        except BaseException as error:
            shutil.rmtree(self.folder)
            if isinstance(error, FileNotFoundError):
                raise InstallError("npm, which comes with Node.js, is not on the PATH") from error
            if isinstance(error, subprocess.CalledProcessError):
                raise InstallError(" ".join(error.stderr.split())) from error
            raise


CLAUDE_OLD = Install("claude-code", "2.1.197", "@anthropic-ai/claude-code", "claude")
CLAUDE_NEW = Install("claude-code", "2.1.332", "@anthropic-ai/claude-code", "claude")
CODEX = Install("codex", "0.171.0", "@openai/codex", "codex")
OPENCODE = Install("opencode", "1.18.33", "opencode-ai", "opencode")
