"""A plugin of pytest under which nothing can import LiteLLM: `make test-fast` runs with it.

That import takes longer than all the tests of the pure rooms. A test of such a room that needs it fails here, with
the traceback of the import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec


class Refusal:
    """Finds no module, and refuses LiteLLM's."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "litellm":
            raise ImportError("a test of `make test-fast` imports litellm: move the test to another room")
        return None


sys.meta_path.insert(0, Refusal())
