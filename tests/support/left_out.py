"""Says at the end of a run which tests its marks left out, and which command runs them."""

from collections import Counter
from collections.abc import Sequence

import pytest

SUMMARY_OPTION = "--left-out"
COMMANDS = {
    "soak": ("minutes of real time", "make test-soak"),
    "nightly": ("thousands of runs", "make test-nightly"),
    "rocketmq": ("a real RocketMQ broker (Java and Maven)", "make test-broker"),
    "spark": ("Spark (Java)", "make test-spark"),
    "s3": ("a real S3 server", "make test-s3"),
    "data": ("Iceberg", "make test-slow"),
    "slow": ("more than a second each", "make test-slow"),
}
"""What the tests with a mark need and which command runs them; the first mark counts."""
_OUTPUT = "tests_left_out"


class LeftOut:
    """A pytest plugin; the workers of pytest-xdist count, and their controller prints."""

    def __init__(self, *, prints: bool) -> None:
        self._prints = prints
        self._counts: Counter[str] = Counter()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count tests by their first mark."""
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            self._counts.update([next((one for one in COMMANDS if one in marks), "")])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """Take what a worker counted; each of them counts all tests."""
        self._counts = Counter(getattr(node, "workeroutput", {}).get(_OUTPUT, self._counts))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what this worker counted to its controller."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = dict(self._counts)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each mark."""
        if not self._prints:
            return
        terminalreporter.section("left out")
        for mark, (needs, command) in COMMANDS.items():
            if count := self._counts[mark]:
                terminalreporter.write_line(f"{count:4} tests, {needs}: {command}")
        terminalreporter.write_line(
            "the types of Spark, Iceberg and pandas, every page: make test-full;"
            " wheels on other Pythons: make test-wheels"
        )
