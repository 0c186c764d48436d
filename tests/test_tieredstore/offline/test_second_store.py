"""Jobs over a tier whose old segments lie in a second store."""

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from provider.errors import Denied
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker
from tieredstore import sync
from tieredstore.config.effective import Config
from tieredstore.offline import dataset
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.jobs.restore_store import restore_store

SETTINGS = {
    "brokerClusterName": "C",
    "brokerName": "b",
    "tieredStoreConsumeQueueMaxSize": "2000",
    "tieredStoreCommitLogMaxSize": "20000",
}
MESSAGES = 350


def files_below(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and not path.relative_to(root).parts[2].startswith("@")
    }


def defined(settings: dict[str, str]) -> list[str]:
    return [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]


@pytest.fixture
def offloaded(tmp_path: Path) -> Path:
    """A tier of one queue, most of which was offloaded into `second`."""
    broker, tier = FakeBroker(tmp_path / "store"), tmp_path / "tier"
    for number in range(MESSAGES):
        broker.put("T", 0, b"%d" % number)
    with sync.follow(broker.directory, tier, settings=SETTINGS) as follower:
        follower.drain()
    given = {
        **SETTINGS,
        "tieredStoreOffloadPath": str(tmp_path / "second"),
        "tieredStoreOffloadDeletionLag": "0",
        "tieredStoreJournalGraceTime": "0",
    }
    invoke(tier, *defined(given), "offload", "T")
    return tier


def test_a_job_without_the_second_store_says_where_the_journal_has_it(
    offloaded: Path, tmp_path: Path
) -> None:
    rows = dataset(offloaded, "T", columns=["body"], settings=SETTINGS)
    with pytest.raises(Denied, match=f"set tieredStoreOffloadPath={tmp_path / 'second'}"):
        rows.read_all()


@pytest.mark.parametrize("wrong", ["another", "not there", "not mounted"])
def test_with_a_wrong_second_store_no_job_begins_and_with_the_right_one_it_is_whole(
    offloaded: Path, tmp_path: Path, wrong: str
) -> None:
    """Its empty mount point has no object of the tier, which is not the loss of them."""
    second, given, away = tmp_path / "second", tmp_path / wrong, tmp_path / "away"
    if wrong == "not mounted":
        second.rename(away)
        given = second
    if wrong != "not there":
        given.mkdir()
    place, out = defined({**SETTINGS, "tieredStoreOffloadPath": str(given)}), tmp_path / "out"
    for words in (["export", out], ["export", out, "--skip-damaged"], ["audit"], ["check"]):
        said = invoke(offloaded, *place, *words, status=2).stderr
        assert said.count("tieredstore: ") == 1
        assert str(second) in said
        assert ("a disk that is not mounted?" in said) == (wrong == "not mounted")
    assert not out.exists()
    if away.exists():
        second.rmdir()
        away.rename(second)
    invoke(offloaded, *defined({**SETTINGS, "tieredStoreOffloadPath": str(second)}), "export", out)
    assert ds.dataset(out, partitioning="hive").count_rows() == MESSAGES


@pytest.mark.leaves_findings(
    "object-missing", "unreadable", why="a file of the second store is lost"
)
def test_a_lost_file_of_the_second_store_is_not_made_in_the_first(
    offloaded: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    before = files_below(offloaded)
    units = [path for path in second.rglob("*") if path.is_file() and path.stat().st_size == 2000]
    units[0].unlink()
    config = Config.load(
        settings={
            "tieredStoreFilePath": offloaded,
            **SETTINGS,
            "tieredStoreOffloadPath": second,
        }
    )
    report = restore(config, OneProcess())
    (fault,) = report.faults
    assert "it lies in the second store" in fault.fault
    assert list(report.files) == [fault]
    assert files_below(offloaded) == before


def test_a_store_directory_has_the_offloaded_messages(offloaded: Path, tmp_path: Path) -> None:
    given = {"tieredStoreFilePath": offloaded, **SETTINGS}
    second = {"tieredStoreOffloadPath": tmp_path / "second"}

    def restored(settings: dict[str, object]) -> int:
        config = Config.load(settings=settings)
        root = tmp_path / "restored"
        return restore_store(config, OneProcess(), root, wanted=Wanted(), offsets={}).messages

    with pytest.raises(Denied, match="tieredStoreOffloadPath"):
        restored(given)
    assert restored({**given, **second}) == MESSAGES
