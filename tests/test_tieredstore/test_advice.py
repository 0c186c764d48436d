"""What is advised, whatever the cause of a symptom: nothing that destroys where nothing is lost.

Each cause that looks like a lost journal, or like another history, meets each command that could
advise to move, delete or cut; the sentence names the cause.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

from container.journal.frame import Frame
from provider.object.files import MemoryFiles, Page
from tests.support.fake_broker import FakeBroker
from tests.test_tieredstore.test_encrypted_tier import KEYS, NAMED, master
from tieredstore.cli.main import cli

DESTROYS = re.compile(
    r"--journal-to|--cut-to-hot|--leave-nothing|--without|--new-tier|--delete|rebuild|\baside\b"
    r"|\bmove\b|\bremove\b"
)
"""Words of advice after which something is gone."""
MOVES = re.compile(r"\baside\b|\bmove\b")
STORES: dict[str, Any] = fsspec.filesystem("memory").store


class Place:
    """A tier in an object store with one topic, which has a gap or none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"memory://bucket/{root.name}"
        self.options: list[str] = []
        self.broker = FakeBroker(root / "store", commit_log_bytes=1 << 14)
        self.put(60)

    def put(self, count: int) -> None:
        for number in range(count):
            self.broker.put("Orders", 0, b"message %d " % number + bytes(100), keys=f"k{number}")

    def tier(self, status: int | None = 0) -> str:
        return self.said("tier", self.broker.directory, status=status)

    def said(self, *words: str | Path, status: int | None = None) -> str:
        """All that a command prints."""
        given = ("--tier", self.url, *NAMED, *self.options, *map(str, words))
        result = CliRunner().invoke(cli, given)
        assert status is None or result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result.output

    @property
    def journal(self) -> list[str]:
        return sorted(name for name in STORES if "/@journal/" in name)


async def at_once(*_: object) -> None:
    """No owner commits anything: `check` need not wait for that."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(KEYS, raising=False)
    monkeypatch.setattr("container.check.tier._pass", at_once)
    STORES.clear()
    yield Place(tmp_path)
    STORES.clear()


Cause = Callable[[Place, pytest.MonkeyPatch], None]


def keys_for_a_plain_tier(place: Place, patch: pytest.MonkeyPatch) -> None:
    place.tier()
    patch.setenv(KEYS, master("a", 1))


def no_keys(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(KEYS, master("a", 1))
    place.tier()
    patch.delenv(KEYS)


def keys_of_another_name(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(KEYS, master("a", 1))
    place.tier()
    patch.setenv(KEYS, master("b", 2))


def other_keys_of_that_name(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(KEYS, master("a", 1))
    place.tier()
    patch.setenv(KEYS, master("a", 2))


def lost_data_keys(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(KEYS, master("a", 1))
    place.tier()
    for name in [name for name in STORES if "/@keys/" in name]:
        del STORES[name]


def another_broker(place: Place, patch: pytest.MonkeyPatch) -> None:
    del patch
    place.tier()
    place.options += ["-D", "brokerName=broker-b"]


def a_listing_without(*shown: int) -> Cause:
    """Of the newest entries, none but these is listed."""

    def lags(place: Place, patch: pytest.MonkeyPatch) -> None:
        place.tier()
        place.put(10)
        place.tier()
        hidden = {name for number, name in enumerate(place.journal[1:]) if number not in shown}
        real = MemoryFiles.pages

        async def pages(self: MemoryFiles, prefix: str, after: str) -> AsyncGenerator[Page]:
            async for page in real(self, prefix, after):
                yield [entry for entry in page if entry[0] not in hidden]

        patch.setattr(MemoryFiles, "pages", pages)

    return lags


def a_damaged_copy_in_the_cache(place: Place, patch: pytest.MonkeyPatch) -> None:
    """What a cache keeps of the newest message was damaged on its way."""
    del patch
    place.tier()
    place.options += ["-D", f"readAheadDiskCachePath={place.root / 'cache'}"]
    flip(b"essage 59 ")
    place.tier(status=1)
    place.said("read", "Orders", "0", "--offset", "59")
    flip(b"essage 59 ")


def flip(body: bytes) -> None:
    """Turn a bit in front of `body`; once more turns it back."""
    for name, file in STORES.items():
        raw = file.getvalue()
        at = raw.find(body) - 1
        if "/@parts/" in name and at > 0:
            file.seek(at)
            file.write(bytes([raw[at] ^ 1]))


def a_gap(place: Place, patch: pytest.MonkeyPatch) -> None:
    del patch
    place.tier()
    place.put(300)
    while place.broker.min_position < place.broker.position - (1 << 14):
        place.broker.delete_oldest_file()
    place.tier(status=1)


@pytest.mark.leaves_findings(
    "journal", "unreadable", "keys", "checksum", "record", why="the test takes something away"
)
@pytest.mark.parametrize(
    ("cause", "named"),
    [
        (keys_for_a_plain_tier, "it is not encrypted: take the keys away"),
        (no_keys, "it is encrypted: give its master key a"),
        (keys_of_another_name, "the master key a, which was not given"),
        (other_keys_of_that_name, "cannot be opened with the master key a: another key, or damage"),
        (lost_data_keys, "its data keys are gone: restore them from a copy"),
        (another_broker, "there is no tier of this broker"),
        (a_listing_without(0), ""),
        (a_listing_without(1), ""),
        (a_damaged_copy_in_the_cache, ""),
        (a_gap, ""),
    ],
)
def test_nothing_that_destroys_is_advised_where_nothing_is_lost(
    cause: Cause, named: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause(place, monkeypatch)
    before = {name: file.getvalue() for name, file in STORES.items()}
    for words in (("topics",), ("check",), ("read", "Orders", "0", "--offset", "50")):
        said = place.said(*words)
        assert named in said
        assert not DESTROYS.search(said), said
    for words in (("rebuild", "--metadata"), ("repair", "--journal-to", "1", "--yes")):
        said = place.said(*words)
        if cause is another_broker and "rebuild" in words:
            assert "no part with a record is there" in said
        else:
            assert (named or "the journal is whole") in said
        assert not MOVES.search(said), said
    if named:
        assert {name: file.getvalue() for name, file in STORES.items()} == before
        if cause is another_broker:  # the next one begins that broker's
            return
    repair = ("repair", "--cut-to-hot", "--store", place.broker.directory, "--dry-run")
    said = place.said(*repair)
    assert (named or "nothing is to be cut") in said
    assert not DESTROYS.search(said), said
    said = place.tier(status=None)
    assert named in said
    assert not DESTROYS.search(said), said


def test_the_store_of_another_broker_is_told_from_one_that_gave_offsets_again(
    place: Place, tmp_path: Path
) -> None:
    place.tier()
    other = FakeBroker(tmp_path / "other")
    for number in range(70):
        other.put("Orders", 0, b"other %d" % number)
    said = place.said("tier", other.directory, status=1)
    assert "this is not the log that was tiered, or its topic was recreated unnoticed" in said
    assert "until the right store and tier are named, or until" in said
    said = place.said("repair", "--cut-to-hot", "--store", other.directory, "--yes", status=1)
    assert "restore the broker's log" in said


@pytest.mark.leaves_findings("journal", "entry-damaged", "unpublished", why="an entry is damaged")
def test_a_damaged_entry_is_named_with_the_number_that_goes_on(place: Place) -> None:
    place.tier()
    newest = STORES[place.journal[-1]]
    raw = newest.getvalue()
    newest.seek(Frame.SIZE + 3)
    newest.write(bytes([raw[Frame.SIZE + 3] ^ 1]))
    number = int(place.journal[-1].rpartition("/")[2])
    for words in (("topics",), ("check",), ("tier", place.broker.directory)):
        said = place.said(*words)
        assert "bring that file back from a backup; without one, " in said
        assert f"`tieredstore repair --journal-to {number - 1}`" in said
