"""What an agent sends with a call, read leniently; whatever can't be used is answered with what to send instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from openmem_hook.store.search.values import Filters

ROLES = ("user", "assistant", "tool", "system")
DEFAULT_ROLES = ("user", "tool")
_ID = re.compile(r"[0-9a-f]{16}")
_AGO = re.compile(r"(\d{1,6})\s*([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_ROLE_HELP = f'role has to be {", ".join(ROLES)}, a list of these, or "all"'


class ArgumentError(ValueError):
    """What is wrong with an argument and what to send instead, in one line."""


def check(arguments: Mapping[str, Any] | None, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say something; one that the tool does not have is an error, so that no filter is lost
    unnoticed."""
    values = {name: value for name, value in (arguments or {}).items() if value is not None and value != ""}
    unknown = sorted(set(values) - set(properties))
    if unknown:
        raise ArgumentError(f"no argument {make_printable(unknown[0])}; there are {', '.join(properties)}")
    return values


def read_text(arguments: Mapping[str, Any], name: str) -> str:
    """A string, "" where absent."""
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ArgumentError(f"{name} has to be a string")
    return value.encode("utf-8", "replace").decode()


def read_identifier(arguments: Mapping[str, Any], name: str) -> str:
    """16 hex characters, "" where absent."""
    value = read_text(arguments, name).strip().lower()
    if value and not _ID.fullmatch(value):
        raise ArgumentError(f"{name} has to be 16 hex characters, as a pointer or a search shows it")
    return value


def read_whole(arguments: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A whole number between two bounds, both included."""
    value = arguments.get(name, default)
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,15}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ArgumentError(f"{name} has to be a whole number from {least} to {most}")
    return value


def read_filters(arguments: Mapping[str, Any], now: float) -> Filters:
    """Which messages a search is for. `now`: seconds since 1970."""
    return Filters(
        roles=_read_roles(arguments.get("role")),
        in_context=_read_flag(arguments, "in_context"),
        since=_read_moment(arguments.get("since"), "since", now, timedelta()),
        until=_read_moment(arguments.get("until"), "until", now, timedelta(days=1)),
    )


def _read_roles(value: Any) -> tuple[str, ...]:
    """Empty for all of them."""
    if value is None:
        return DEFAULT_ROLES
    items = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
        raise ArgumentError(_ROLE_HELP)
    roles = tuple(dict.fromkeys(item.strip().lower() for item in items))
    if "all" in roles:
        return ()
    if not set(roles) <= set(ROLES):
        raise ArgumentError(_ROLE_HELP)
    return roles


def _read_flag(arguments: Mapping[str, Any], name: str) -> bool | None:
    """None where absent."""
    value = arguments.get(name)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        value = value.strip().lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"{name} has to be true or false")
    return value


def _read_moment(value: Any, name: str, now: float, whole_day: timedelta) -> float | None:
    """Seconds since 1970 of a number of seconds, a span like 2h before now, a date (UTC) or a time; None where absent.

    `whole_day`: what a date without a time lasts, where its end is meant.
    """
    if value is None:
        return None
    for read in (_read_seconds, _read_span, _read_date):
        try:
            seconds = read(value, now, whole_day)
        except (ValueError, OverflowError):
            continue
        if seconds is not None:
            return seconds
    raise ArgumentError(
        f"{name} has to be a time as 2026-01-31T12:00:00Z, a date, or a span back from now: 30m, 2h, 7d"
    )


def _read_seconds(value: Any, _: float, __: timedelta) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    seconds = float(value)
    return seconds if 0 <= seconds < 1e11 else None


def _read_span(value: Any, now: float, _: timedelta) -> float | None:
    span = _AGO.fullmatch(str(value).strip())
    return None if span is None else now - timedelta(**{_UNITS[span[2]]: int(span[1])}).total_seconds()


def _read_date(value: Any, _: float, whole_day: timedelta) -> float | None:
    source = str(value).strip()
    date = datetime.fromisoformat(source)
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    # The end of a day is its last microsecond: both bounds of a filter are included.
    is_day = len(source) <= 10 and whole_day
    return (date + (whole_day - timedelta(microseconds=1) if is_day else timedelta())).timestamp()


def make_printable(name: Any) -> str:
    """A name that an agent made up, short and on one line."""
    return "".join(c if c.isprintable() else "?" for c in str(name)[:40])
