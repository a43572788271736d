"""What `openmem serve` starts, checked as far as it can be checked in a moment.

Three habits of LiteLLM are met on the way: it refuses to run without a master key, it takes a random port when 4000 is
in use, and it listens on all addresses unless told otherwise.
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openmem_hook import __version__
from openmem_hook.cli import gateway_config, master_key
from openmem_hook.cli.base import CannotRunError


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line says, by the names of its options."""

    config: Path | None
    host: str
    port: int
    workers: int
    litellm_args: Sequence[str]


@dataclass(frozen=True, slots=True)
class Launch:
    """The process that takes this one's place."""

    command: Sequence[str]
    environ: Mapping[str, str]
    config: Path
    address: str
    key_file: Path | None
    """None where the master key comes from elsewhere."""
    unset_variables: Mapping[str, Sequence[str]]
    """Provider variables that are not set, with the models that need them."""


def plan(options: ServeOptions, environ: Mapping[str, str]) -> Launch:
    """What is started with these options. Makes the file of the master key where it is needed and missing.

    Raises CannotRunError for what LiteLLM would refuse seconds later, or would not refuse.
    """
    file = options.config or gateway_config.default_file()
    document = gateway_config.read(file)
    gateway_config.check_settings(document, environ)
    _check_port(options.host, options.port)
    key_file, keys = None, {}
    if not environ.get(master_key.VARIABLE) and not gateway_config.sets_master_key(document, master_key.VARIABLE):
        key_file = master_key.key_file(environ)
        keys = {master_key.VARIABLE: master_key.read_or_make(key_file)}
    words = ["--config", str(file), "--host", options.host, "--port", str(options.port)]
    if options.workers > 1:
        # A worker imports for seconds before it answers; uvicorn's 5 s would kill it again and again.
        words += ["--num_workers", str(options.workers), "--timeout_worker_healthcheck", "120"]
    return Launch(
        command=[_litellm(), *words, *options.litellm_args],
        environ={**environ, **keys},
        config=file,
        address=f"http://{options.host}:{options.port}",
        key_file=key_file,
        unset_variables=gateway_config.unset_variables(document, environ),
    )


def greeting(launch: Launch) -> Iterator[str]:
    """What a person reads before the gateway's own lines. Never a key."""
    yield f"openmem {__version__}: gateway on {launch.address} with {launch.config}"
    key = f"${master_key.VARIABLE}" if launch.environ.get(master_key.VARIABLE) else "…"
    if launch.key_file is not None:
        yield f"master key: in {launch.key_file} (mode 600)"
        key = f"$(cat {shlex.quote(str(launch.key_file))})"
    yield f'Claude Code: export OPENMEM_KEY="{key}"'
    yield f'             ANTHROPIC_BASE_URL={launch.address} ANTHROPIC_AUTH_TOKEN="$OPENMEM_KEY" claude'
    for variable, models in launch.unset_variables.items():
        yield f"{variable} is not set: no answers from {', '.join(models)}"


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotRunError(f"port {port} on {host} is in use: choose another with --port") from error
            raise CannotRunError(f"can't listen on {host} port {port}: {error.strerror}") from error
        except (TypeError, ValueError) as error:
            raise CannotRunError(f"can't listen on {host!r} port {port}: no such address") from error


def _litellm() -> str:
    """The `litellm` command of this very environment."""
    path = Path(sys.executable).with_name("litellm")
    if not os.access(path, os.X_OK):
        raise CannotRunError(f"{path} is missing: pip install 'litellm[proxy]'")
    return str(path)
