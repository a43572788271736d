"""Context management for coding agents behind a LiteLLM gateway.

`handler`, the callback that a gateway's YAML names, is made on first use: importing this package, as the
command line does, never imports litellm.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "handler"]


def __getattr__(name: str) -> Any:
    if name == "handler":
        from openmem_hook.gateway.hook import shared_handler

        return shared_handler()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
