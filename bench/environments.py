"""The peers, each in an environment of its own: `python -m bench.environments [NAME ...]` installs them.

They come into .peers/NAME. A peer that isn't there is left out of the measurement, and the page says so.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[1]
FOLDER = REPO / ".peers"
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "HEADROOM_OFFLINE": "1",
    "HEADROOM_TELEMETRY": "off",
    "OTEL_SDK_DISABLED": "true",
}
"""No way asks the network or tells it anything."""


@dataclass(frozen=True, slots=True)
class Peer:
    """`requirements` of its environment; none: it runs in the project's. `package` names its version. `options`
    are pip's."""

    package: str
    requirements: Sequence[str] = ()
    options: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        return FOLDER / self.package

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python" if self.requirements else Path(sys.executable)

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return next(self.folder.glob("lib/python*/site-packages"), self.folder)

    def version(self) -> str | None:
        """None where it isn't installed."""
        if not self.requirements:
            try:
                return importlib.metadata.version(self.package)
            except importlib.metadata.PackageNotFoundError:
                return None
        known = importlib.metadata.distributions(name=self.package, path=[str(self.site)])
        return next((found.version for found in known), None) if (self.folder / "ready").exists() else None


PEERS: Mapping[str, Peer] = {
    "no hook": Peer("openmem-hook"),
    "openmem": Peer("openmem-hook"),
    "CliffCompaction": Peer("cliffcompaction"),
    "distil": Peer("distil-llm", ("distil-llm==1.58.0",)),
    "LiteLLM compress": Peer("litellm"),
    "Kompact": Peer("kompact", ("kompact==0.4.0",)),
    "Headroom": Peer("headroom-ai", ("headroom-ai==0.42.0",)),
    # It requires seven agent frameworks, and imports none of them for this.
    "openlcm": Peer("openlcm", ("openlcm==0.1.4",), ("--no-deps",)),
}


def install(peer: Peer) -> None:
    """CalledProcessError where pip fails."""
    own = [sys.executable, "-m"]
    subprocess.run([*own, "venv", "--without-pip", str(peer.folder)], check=True)
    quiet = ["--quiet", "--disable-pip-version-check"]
    pip = [*own, "pip", "--python", str(peer.folder), "install", *quiet, *peer.options, *peer.requirements]
    subprocess.run(pip, check=True)
    (peer.folder / "ready").touch()


def environ(peer: Peer, home: Path) -> dict[str, str]:
    """Variables of a process that runs a peer; nothing of a person's own settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    own = {} if peer.requirements else {"PYTHONPATH": str(REPO)}
    return {**kept, **QUIET, **own, "HOME": str(home)}


def main() -> int:
    wanted = sys.argv[1:] or [name for name, peer in PEERS.items() if peer.requirements]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        print(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
        return 2
    missed = []
    for name in wanted:
        print(f"{name}: {', '.join(PEERS[name].requirements)}", flush=True)
        try:
            install(PEERS[name])
        except subprocess.CalledProcessError:
            missed.append(name)
    print(f"not installed: {', '.join(missed)}" if missed else "all installed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
