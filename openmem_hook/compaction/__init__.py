"""Decisions about a history: pure, no I/O, no clock."""
