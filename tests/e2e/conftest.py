"""The gateway that the tests of this room share, and how they begin a session at it."""

from __future__ import annotations

from tests.harness.gateway_process import gateway, http, upstream
from tests.harness.tracked_session import follow

__all__ = ["follow", "gateway", "http", "upstream"]
