"""A failure is printed before the next test begins."""

import pytest

from tests.support.at_once import AtOnce

pytest_plugins = ["pytester"]

TESTS = """
def test_first():
    print("printed by it")
    assert "the error" == "another"

def test_second():
    pass
"""


def test_a_failure_is_printed_before_the_next_test_begins(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    class Plugins:
        def pytest_configure(self, config: pytest.Config) -> None:
            config.pluginmanager.register(AtOnce(config), "at-once")

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            seen.append(capsys.readouterr().out)

    file = pytester.makepyfile(TESTS)
    scope = "asyncio_default_fixture_loop_scope=function"
    pytester.inline_run(file, "-p", "no:randomly", "-o", scope, plugins=[Plugins()])
    assert "the error" not in seen[0]
    for words in ("::test_first, call", "the error", "printed by it"):
        assert words in seen[1]
