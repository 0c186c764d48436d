"""Measures the CPU time of each test, and lists the tests that take too much for `make test`.

Counted is what the test's process and its ended children used, without the set-up and the end of
fixtures that several tests share. Real time would say how busy the machine is.
"""

import os
from collections.abc import Generator
from dataclasses import dataclass

import pytest
from _pytest.fixtures import FixtureDef, SubRequest

CPU_S_MAX = 1.0
"""A test that takes more bears a mark that puts it in a higher level."""
SHOWN = 20
FAIL_OPTION = "--fail-over-cpu"


def used_s() -> float:
    """CPU seconds of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass
class Began:
    """The times when a shared fixture began its set-up or its end."""

    used_s: float = 0.0
    shared_s: float = 0.0


class CpuSeconds:
    """A pytest plugin; it also works where pytest-xdist runs the tests in workers."""

    def __init__(self, *, fails: bool) -> None:
        """`fails`: whether a test over the limit fails the run."""
        self._fails = fails
        self._shared_s = 0.0
        self._of: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: FixtureDef[object], request: SubRequest
    ) -> Generator[None, object, object]:
        """Leave out what fixtures of a module or a session cost, and their end."""
        if fixturedef.scope == "function":
            return (yield)
        # Finalizers run in reverse order. An ended server's whole life counts at its end.
        began = Began()
        fixturedef.addfinalizer(lambda: self._share(began))
        self._begin(began)
        result = yield
        self._share(began)
        fixturedef.addfinalizer(lambda: self._begin(began))
        return result

    def _begin(self, began: Began) -> None:
        began.used_s, began.shared_s = used_s(), self._shared_s

    def _share(self, began: Began) -> None:
        """Leave out all since the beginning, nested fixtures only once."""
        self._shared_s = began.shared_s + used_s() - began.used_s

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin to measure a test."""
        self._began_s, self._shared_s = used_s(), 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the time into the last report of a test, which a worker sends to its controller."""
        report = yield
        if call.when == "teardown":
            report.__dict__["cpu_s"] = used_s() - self._began_s - self._shared_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test's time."""
        if report.when == "teardown":
            self._of[report.nodeid] = getattr(report, "cpu_s", 0.0)

    def over(self) -> list[tuple[float, str]]:
        """The tests over the limit, the slowest first."""
        slow = [(cpu_s, test) for test, cpu_s in self._of.items() if cpu_s > CPU_S_MAX]
        return sorted(slow, reverse=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that has a test over the limit, if that was asked for."""
        if self._fails and self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests over the limit."""
        total_s = sum(self._of.values())
        over = self.over()
        terminalreporter.section(
            f"{total_s:.0f} s of CPU time in {len(self._of)} tests,"
            f" {len(over)} over {CPU_S_MAX:g} s"
        )
        for cpu_s, test in over[: None if self._fails else SHOWN]:
            terminalreporter.write_line(f"{cpu_s:6.2f} s  {test}")
