"""Prints each failure when it happens: a run of hours may be ended before its summary."""

import pytest

AT_ONCE_OPTION = "--at-once"


class AtOnce:
    """A pytest plugin; where pytest-xdist runs the tests, its controller prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name, the error and the output of a test that failed."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        terminal.ensure_newline()
        terminal.section(f"{report.nodeid}, {report.when}", bold=True, red=True)
        report.toterminal(terminal._tw)
        for title, text in report.sections:
            terminal.write_line(f"{title}\n{text}")
        terminal.flush()
