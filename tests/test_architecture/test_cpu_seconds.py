"""What counts as the CPU time of a test."""

import pytest

from tests.support import cpu_seconds
from tests.support.cpu_seconds import CpuSeconds

pytest_plugins = ["pytester"]

SCOPE = "asyncio_default_fixture_loop_scope=function"

TESTS = """
import pytest
from tests.support.cpu_seconds import used_s

@pytest.fixture(scope="session")
def outer():
    used_s.spend(3)
    yield
    used_s.spend(40)

@pytest.fixture(scope="module")
def inner(outer):
    used_s.spend(5)
    yield
    used_s.spend(60)

@pytest.fixture
def own():
    used_s.spend(0.25)
    yield
    used_s.spend(0.125)

def test_one(inner, own):
    used_s.spend(0.5)
"""


class Spent:
    """A clock of CPU time that the tests move."""

    now_s = 0.0

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("max_s", "status"), [(0.875, 0), (0.874, 1)])
def test_shared_fixtures_count_neither_at_their_set_up_nor_at_their_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, max_s: float, status: int
) -> None:
    monkeypatch.setattr(cpu_seconds, "used_s", Spent())
    monkeypatch.setattr(cpu_seconds, "CPU_S_MAX", max_s)
    file = pytester.makepyfile(TESTS)
    assert pytester.inline_run(file, "-o", SCOPE, plugins=[CpuSeconds(fails=True)]).ret == status
