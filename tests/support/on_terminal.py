"""Lets commands that run in the test's process believe that people see their output."""

import pytest

from tieredstore.cli import output
from tieredstore.cli.commands import read


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """A terminal of `width` cells; a real one is in `test_read.py`."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(read, "is_terminal", lambda: True)
