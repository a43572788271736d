"""The demo: the real gateway, the plugin, a scripted model, a session of hundreds of tool exchanges. Offline."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import gateway, report, session, store_contents
from demo.gateway import DemoError

TRIM_AT = 40_000
"""Low, so that a minute shows several trims; the shipped settings trim Claude at 125,000."""
EXCHANGES = 320


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--exchanges", type=int, default=EXCHANGES, help="tool exchanges (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the store and the logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _exit)
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="openmem-demo-"))
    keep = options.keep
    try:
        good = _run(console, folder, max(options.exchanges, session.TURNS))
        keep = keep or not good
    except DemoError as error:
        console.print(f"[bold red]✗[/] {error}", soft_wrap=True)
        good, keep = False, True
    except KeyboardInterrupt:
        return 130
    finally:
        if keep:
            console.print(f"\nstore and logs: {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder)
    return 0 if good else 1


def _exit(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


def _run(console: Console, folder: Path, exchanges: int) -> bool:
    console.print("[bold]openmem_hook demo[/]: the real gateway, a scripted model, loopback only")
    key = f"sk-{secrets.token_urlsafe(24)}"
    state = folder / "context"
    with ExitStack() as running:
        with console.status("starting the scripted model and the gateway (about 10 seconds)"):
            model = running.enter_context(gateway.provider(folder / "model.log"))
            config = gateway.gateway_config(model, key, state, TRIM_AT)
            address = running.enter_context(gateway.gateway(config, folder, folder / "gateway.log"))
        result = _drive(console, address, model, key, exchanges)
        store = store_contents.read(state, session.DETAIL, len(result.through))
    return report.show(console, result, store, TRIM_AT)


def _drive(console: Console, address: str, model: str, key: str, exchanges: int) -> session.DemoSession:
    columns = (TextColumn("coding session"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    total = exchanges + session.TURNS
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=total)
        return asyncio.run(
            session.drive(address, model, key, exchanges, lambda count: progress.update(task, completed=count))
        )


if __name__ == "__main__":
    sys.exit(main())
