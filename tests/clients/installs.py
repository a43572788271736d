"""The agents that people use, in the versions that the suite runs, in a folder of the checkout."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".clients"


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
        """A folder of its own: two versions of one package live side by side. An attempt that fails leaves nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error", "--prefix", str(self.folder)]
        try:
            subprocess.run([*npm, f"{self.package}@{self.version}"], check=True)
        except BaseException:
            shutil.rmtree(self.folder)
            raise


CLAUDE_OLD = Install("claude-code", "2.1.197", "@anthropic-ai/claude-code", "claude")
CLAUDE_NEW = Install("claude-code", "2.1.332", "@anthropic-ai/claude-code", "claude")
CODEX = Install("codex", "0.171.0", "@openai/codex", "codex")
OPENCODE = Install("opencode", "1.18.33", "opencode-ai", "opencode")
