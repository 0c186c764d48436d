"""Machines that lack something: a call of the file system, a temporary directory, a home."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provider.errors import Denied
from provider.posix.store import PosixStore
from tests.support.cli import complaints
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli

NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    broker = FakeBroker(tmp_path / "store")
    for number in range(10):
        broker.put("Orders", 0, b"%d" % number)
    return broker.directory


def no_directory_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)


def no_ofd_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = fcntl.fcntl

    def call(fd: int, command: int, argument: bytes = b"") -> bytes:
        if command in {36, 37}:
            raise OSError(number, os.strerror(number))
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", call)


@pytest.mark.parametrize(
    "lacking",
    [
        (no_directory_sync, errno.EINVAL, "fsync of directories"),
        (no_directory_sync, errno.EBADF, "fsync of directories"),
        (no_ofd_locks, errno.EINVAL, "F_OFD_SETLK"),
        (no_ofd_locks, errno.ENOSYS, "F_OFD_SETLK"),
    ],
)
def test_a_file_system_that_lacks_a_call_is_refused_with_path_and_call(
    lacking: tuple[Callable[[pytest.MonkeyPatch, int], None], int, str],
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lack, number, call = lacking
    tier, own = tmp_path / "t9", tmp_path / "own9"
    with monkeypatch.context() as machine:
        lack(machine, number)
        tiered = invoke(*NAMED, "--tier", tier, "tier", store)
        put = invoke("-D", f"storePathRootDir={own}", "-D", "brokerName=b", "put", "T", "x")
    for result, name in ((tiered, "t9"), (put, "own9")):
        assert result.exit_code == 2, result.output
        said = complaints(result.stderr).splitlines()
        assert len(said) == 1, said
        assert call in said[0]
        assert name in said[0]


def test_a_store_of_ones_own_names_a_sync_that_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fdatasync(fd: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    own = tmp_path / "own9"
    result = invoke("-D", f"storePathRootDir={own}", "-D", "brokerName=b", "put", "T", "x")
    assert result.exit_code == 2, result.output
    (said,) = complaints(result.stderr).splitlines()
    assert "lacks fdatasync" in said
    assert "own9" in said


def test_without_a_temporary_directory_jobs_say_so_and_others_work(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    tier = tmp_path / "t"
    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert invoke(*NAMED, "--tier", tier, "tier", store).exit_code == 0
    for words in (["audit"], ["export", tmp_path / "out"], ["rebuild"]):
        result = invoke("--tier", tier, *words, "--processes", "2")
        assert result.exit_code == 2, (words, result.output)
        assert "set TMPDIR" in result.stderr
        assert "no such object" not in result.stderr


def test_no_home_is_needed(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", none)
    for words in ([*NAMED, "tier", store], ["topics"], ["read", "Orders", "0"]):
        result = invoke("--tier", tmp_path / "t", *words)
        assert result.exit_code == 0, result.output


async def test_no_deletion_follows_a_link_out_of_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    root.mkdir()
    for path in (outside / "precious", outside / "below" / "precious"):
        path.write_bytes(b"precious")
    (root / "T").symlink_to(outside)
    (root / "U").mkdir()
    (root / "U" / "V").symlink_to(outside / "below")
    store = PosixStore(root)
    for name in ("T/precious", "T/below/precious", "U/V/precious"):
        with pytest.raises(Denied, match="symbolic link"):
            await store.delete([name])
    await store.delete(["T"])  # not an object, and where it leads to stays
    await store.close()
    assert [(outside / one).read_bytes() for one in ("precious", "below/precious")] == [
        b"precious",
        b"precious",
    ]
