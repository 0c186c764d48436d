"""An export at a URL is that of a directory: whole files, each message once, one writer."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import fsspec
import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem

from container.errors import InUse
from provider.errors import AlreadyExists, Denied, Unavailable
from tests.support.cli import run
from tests.test_tieredstore.offline.test_export import Growing, exported, files_of, planned
from tieredstore.config.location import Location, location_at
from tieredstore.offline.export.export_directory import (
    LEDGER,
    LOCK,
    ExportPlace,
    UrlDirectory,
    directory_at,
)
from tieredstore.offline.export.lease import BEAT_S, BEATS_MISSED_MAX, ExportLease
from tieredstore.offline.jobs.engine import OneProcess


class PlainFileSystem(LocalFileSystem):
    """A file system whose files grow under their names, but for transactions of fsspec."""

    protocol = ("plain",)

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return "/" + str(path).removeprefix("plain://").lstrip("/")


class ArrowFileSystem(ArrowFSWrapper):
    """As that of `hdfs://` URLs: its files take no part in transactions of fsspec."""

    protocol: Any = "arrowed"

    def __init__(self, **options: Any) -> None:
        super().__init__(pafs.LocalFileSystem(), **options)


@pytest.fixture(params=["memory", "plain", "arrowed"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    fsspec.register_implementation("plain", PlainFileSystem, clobber=True)
    fsspec.register_implementation("arrowed", ArrowFileSystem, clobber=True)
    yield location_at(f"{request.param}://{str(tmp_path).lstrip('/')}/out")
    fsspec.filesystem("memory").store.clear()


def files_at(url: Location) -> dict[str, bytes]:
    """As `files_of`."""
    directory = directory_at(ExportPlace(str(url)))
    names = [name for name in directory.names() if not name.startswith(LEDGER)]
    return {name: directory.read(name) or b"" for name in names}


def table_at(url: Location) -> pa.Table:
    file_system, path = fsspec.url_to_fs(str(url))
    return ds.dataset(path, filesystem=file_system, partitioning="hive", format="parquet",
                      exclude_invalid_files=False).to_table()  # fmt: skip


def test_files_are_those_of_a_directory_and_a_rerun_adds_what_came_since(
    tmp_path: Path, url: Location
) -> None:
    growing = Growing(tmp_path)
    for count in (5, 8, 0, 3):
        growing.grow(count)
        for where in (tmp_path / "local", url):
            report = exported(growing.tier, where)
            assert sum(topic.messages for topic in report.topics) == count
    assert files_at(url) == files_of(tmp_path / "local")
    assert sorted(table_at(url)["body"].to_pylist(), key=int) == growing.bodies
    ledger = {name.rpartition("/")[2] for name in directory_at(ExportPlace(str(url))).names(LEDGER)}
    assert ledger == {"export.json", "plan-000003.json", "000000", "000001"}  # of the last run


def test_a_write_that_fails_leaves_no_file_and_the_next_run_goes_on(
    tmp_path: Path, url: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path)
    growing.grow(10)

    class Failing(PlainFileSystem):
        """Fails when half of the file is written."""

        def _open(self, path: Any, mode: str = "rb", *more: Any, **options: Any) -> Any:
            made: Any = super()._open(path, mode, *more, **options)
            if mode == "wb" and "/1-" in str(path):
                write: Callable[[bytes], int] = made.write

                def half(content: bytes) -> None:
                    write(content[: len(content) // 2])
                    raise TimeoutError("no answer")

                made.write = half
            return made

    with monkeypatch.context() as patched:
        if str(url).startswith("plain"):
            fsspec.register_implementation("plain", Failing, clobber=True)
        elif str(url).startswith("arrowed"):
            rename = ArrowFileSystem.mv

            def fail_to_rename(self: Any, path: str, target: str) -> None:
                if "/1-" in target:
                    raise TimeoutError("no answer")
                rename(self, path, target)

            patched.setattr(ArrowFileSystem, "mv", fail_to_rename)
        else:
            kind: Any = type(fsspec.filesystem("memory"))
            whole: Any = kind.pipe_file

            def fail(self: Any, path: str, *content: Any, **options: Any) -> None:
                if "/1-" in path:
                    raise TimeoutError("no answer")
                whole(self, path, *content, **options)

            patched.setattr(kind, "pipe_file", fail)
        with pytest.raises(Unavailable, match="does not answer in time"):
            exported(growing.tier, url)
    fsspec.register_implementation("plain", PlainFileSystem, clobber=True)
    left = [name.rpartition("/")[2] for name in files_at(url)]
    assert [name[:2] for name in left if name[0] != "."] == ["0-"]
    growing.grow(2)
    assert exported(growing.tier, url).tasks_before == 1
    exported(growing.tier, url)
    assert not [name for name in files_at(url) if "/." in name]
    assert sorted(table_at(url)["body"].to_pylist(), key=int) == growing.bodies


def test_a_file_system_that_shows_half_files_is_refused_in_a_sentence(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(3)

    class Unfinished(PlainFileSystem):
        """Its files have no `commit`."""

        def _open(self, path: Any, mode: str = "rb", *_: Any, **__: Any) -> Any:
            return Path(str(path)).open(mode)

    fsspec.register_implementation("plain", Unfinished, clobber=True)
    url = location_at(f"plain://{str(tmp_path).lstrip('/')}/out")
    with pytest.raises(Denied, match="shows files before they are whole"):
        exported(growing.tier, url)
    assert list(files_at(url)) == []


def test_the_command_exports_each_broker_below_a_url(golden_tier: Path, url: Location) -> None:
    more = ("--topic", "G_Keys", "--columns", "keys")
    of_one = run("--tier", golden_tier, "export", str(url / "one"), *more)
    assert "G_Keys" in of_one.out
    for _ in range(2):
        run("--tier", golden_tier, "export", str(url / "all"), "--broker", "*", *more)
    assert {name.split("/topic")[0] for name in files_at(url / "all") if "parquet" in name} == {
        "cluster=GoldenCluster/broker=golden-a"
    }
    refused = run("--tier", golden_tier, "export", str(url / "one"), "--broker", "*", status=2)
    assert "holds an export of one broker" in refused.err
    refused = run("--tier", golden_tier, "export", str(url), status=2)
    assert "is not empty, and holds no export" in refused.err


class Waits:
    """Waiting that ends when the test has it so."""

    def __init__(self) -> None:
        self.begun: Queue[float] = Queue()
        self.ends: Queue[int] = Queue()

    def __call__(self, seconds: float) -> bool:
        self.begun.put(seconds)
        return bool(self.ends.get(timeout=30))


def lease_at(url: Location, wait: Callable[[float], object]) -> ExportLease:
    directory = directory_at(ExportPlace(str(url)))
    assert isinstance(directory, UrlDirectory)
    return ExportLease(directory, LOCK, str(url), wait=wait)


def read_lease(url: Location) -> Any:
    content = directory_at(ExportPlace(str(url))).read(LOCK)
    return None if content is None else orjson.loads(content)


def test_a_living_holder_is_named_and_renews_its_lease(url: Location) -> None:
    beats = Waits()

    def beat(seconds: float) -> None:
        """The holder renews it while the other one waits."""
        assert seconds == BEAT_S
        beats.begun.get(timeout=30)
        beats.ends.put(0)
        beats.begun.get(timeout=30)
        beats.begun.put(seconds)

    with lease_at(url, beats):
        first = read_lease(url)
        with pytest.raises(InUse, match=rf"process {first['process']} on .* writes this export"):
            lease_at(url, beat).__enter__()
        assert read_lease(url) == first | {"beats": first["beats"] + 1}
        beats.ends.put(1)
    assert read_lease(url) is None


def test_a_dead_holder_is_waited_for_and_replaced(url: Location, tmp_path: Path) -> None:
    directory = directory_at(ExportPlace(str(url)))
    directory.create(LOCK, b'{"writer": "dead", "host": "h", "process": 1, "beats": 3}')
    with pytest.raises(AlreadyExists):
        directory.create(LOCK, b"{}")
    waited: list[float] = []
    ended = threading.Event()

    def wait(seconds: float) -> bool:
        if len(waited) <= BEATS_MISSED_MAX:
            waited.append(seconds)
            return False
        return ended.wait()

    with lease_at(url, wait):
        assert waited == [*([BEAT_S] * BEATS_MISSED_MAX), 1.0]
        assert read_lease(url)["writer"] != "dead"
        ended.set()
    assert read_lease(url) is None


def test_of_two_that_replace_a_dead_holder_the_last_writer_has_the_lease(url: Location) -> None:
    directory = directory_at(ExportPlace(str(url)))
    directory.create(LOCK, b'{"writer": "dead", "host": "h", "process": 1, "beats": 3}')

    def wait(seconds: float) -> None:
        if seconds == 1.0:
            directory.write(LOCK, b'{"writer": "rival", "host": "h", "process": 2, "beats": 0}')

    with pytest.raises(InUse, match="process 2 on h writes this export"):
        lease_at(url, wait).__enter__()
    assert read_lease(url)["writer"] == "rival"


def test_a_lease_that_another_one_has_is_neither_renewed_nor_given_back(url: Location) -> None:
    beats = Waits()
    directory = directory_at(ExportPlace(str(url)))
    rival = b'{"writer": "rival", "host": "h", "process": 2, "beats": 0}'
    with lease_at(url, beats):
        beats.begun.get(timeout=30)
        directory.write(LOCK, rival)
        beats.ends.put(0)
    assert directory.read(LOCK) == rival


def test_of_two_runs_of_one_plan_the_second_is_refused(tmp_path: Path, url: Location) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    one, two = planned(growing.tier, url), planned(growing.tier, url)
    one.run(OneProcess())
    with pytest.raises(InUse, match="another process has written this export meanwhile"):
        two.run(OneProcess())
    assert sorted(table_at(url)["body"].to_pylist(), key=int) == growing.bodies


@pytest.mark.s3
def test_an_export_lies_in_a_bucket(tmp_path: Path, s3_url: str) -> None:
    growing = Growing(tmp_path)
    growing.grow(5)
    for count in (5, 7):
        run("--tier", growing.tier, "export", s3_url.replace("s3:", "s3a:"))
        files = files_at(location_at(s3_url))
        rows = [
            row["body"] for content in files.values() for row in
            pq.read_table(pa.BufferReader(content)).to_pylist()
        ]  # fmt: skip
        assert sorted(rows, key=int) == growing.bodies
        assert len(rows) == count
        growing.grow(2)
    assert read_lease(location_at(s3_url)) is None
