"""What a test needs and a machine may not have."""

import os
from typing import NoReturn

import pytest


def lacks(sentence: str) -> NoReturn:
    """End the test, as the sentence says what this machine lacks: skipped, but failed in CI."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)
