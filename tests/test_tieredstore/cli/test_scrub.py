"""`scrub` goes on where it stopped, tells what nothing refers to, and gives it up only if told."""

import json
from pathlib import Path
from typing import Any

import pytest

from container.names.rocketmq import broker_directory
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker

NAMED = ("-D", "brokerName=b", "-D", "brokerClusterName=C")
PART = f"@parts/0000000001/{'ab' * 16}"
AT_ONCE = ("-D", "tieredStoreCutGraceTime=0")


class Scrubbed:
    """A tier of two queues, of the second owner."""

    def __init__(self, tmp_path: Path) -> None:
        self.tier = tmp_path / "tier"
        self.broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
        for _ in range(2):
            for queue in range(2):
                self.broker.put_many("A", queue, [b"body"] * 30)
            self.tier_again()
        self.files = self.tier / broker_directory("C", "b")

    def tier_again(self, *words: str) -> None:
        invoke(self.tier, *NAMED, *words, "tier", str(self.broker.directory), "--json")

    def scrub(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        result = invoke(self.tier, *NAMED, "scrub", *words, "--json", status=status)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def put(self, name: str) -> Path:
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not ours")
        return path


@pytest.fixture
def scrubbed(tmp_path: Path) -> Scrubbed:
    return Scrubbed(tmp_path)


def test_each_run_goes_on_where_the_last_one_stopped(scrubbed: Scrubbed) -> None:
    runs = [scrubbed.scrub("--operations", "1")[-1]]
    while not runs[-1]["round_over"]:
        runs += scrubbed.scrub("--operations", "1")
    assert {run["round"] for run in runs} == {1}
    assert len(runs) > 3
    whole = scrubbed.scrub()[-1]
    assert (whole["round"], whole["round_over"], whole["findings"]) == (2, True, 0)
    assert sum(run["bytes_read"] for run in runs) == whole["bytes_read"] > 0
    scrubbed.scrub("--operations", "1")
    assert scrubbed.scrub("--from-start", "--operations", "100000")[-1]["round_over"]
    said = invoke(scrubbed.tier, *NAMED, "scrub", "--operations", "1").stdout
    assert "nothing is wrong; round 4 continues after A/0" in said
    assert "nothing is wrong; round 4 is over" in invoke(scrubbed.tier, *NAMED, "scrub").stdout


@pytest.mark.leaves_findings("orphan", why="a stray part")
def test_what_nothing_refers_to_is_told_and_stays(scrubbed: Scrubbed) -> None:
    part = scrubbed.put(PART)
    finding, said = scrubbed.scrub(status=1)
    assert (finding["finding"], finding["path"]) == ("orphan", PART)
    assert (said["unclaimed"], said["unclaimed_for_grace"], said["given_up"]) == (1, 0, [])
    _, said = scrubbed.scrub("--delete", status=1)
    assert said["given_up"] == [], "the grace time has only begun"
    text = invoke(scrubbed.tier, *NAMED, "scrub", "--grace", "0", status=1).stdout
    assert "1 objects have had no reference for the grace time: --delete gives those" in text
    assert part.exists()


def test_on_the_word_it_is_given_up_and_the_next_owner_deletes_it(scrubbed: Scrubbed) -> None:
    part = scrubbed.put(PART)
    scrubbed.scrub(status=1)
    given = scrubbed.scrub("--delete", "--grace", "0", *AT_ONCE, status=1)[-1]
    assert given["given_up"] == [PART]
    assert scrubbed.scrub()[-1]["unclaimed"] == 0, "it has a tombstone now"
    scrubbed.tier_again()
    assert not part.exists()


@pytest.mark.leaves_findings("orphan", "unknown-queue", why="files of somebody else")
def test_what_a_tier_did_not_make_is_never_given_up(scrubbed: Scrubbed) -> None:
    stranger = scrubbed.put("A/0/notes")
    segment = next((scrubbed.files / "A/0/COMMIT_LOG").iterdir())
    unknown = scrubbed.put(f"Unknown/0/COMMIT_LOG/{segment.name}")
    *findings, said = scrubbed.scrub("--delete", "--grace", "0", *AT_ONCE, status=1)
    assert {one["finding"] for one in findings} == {"orphan", "unknown-queue"}
    assert said["given_up"] == []
    scrubbed.tier_again()
    assert stranger.exists()
    assert unknown.exists()


@pytest.mark.leaves_findings("checksum", "record", why="a byte is changed")
def test_rot_is_found_and_named(scrubbed: Scrubbed) -> None:
    segment = next((scrubbed.files / "A/0/COMMIT_LOG").iterdir())
    raw = bytearray(segment.read_bytes())
    raw[-1] ^= 1
    segment.write_bytes(raw)
    finding, said = scrubbed.scrub(status=1)
    assert (finding["finding"], finding["path"]) == ("checksum", f"A/0/COMMIT_LOG/{segment.name}")
    assert said["findings"] == 1


def test_segments_by_state_and_by_offset(scrubbed: Scrubbed) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        said = invoke(scrubbed.tier, *NAMED, "segments", *words, "--json").stdout
        return [json.loads(line) for line in said.splitlines()]

    listed = rows("A", "1")
    assert rows("A", "1", "--state", "copy_finished") == listed
    assert rows("A", "1", "--state", "DELETE_STARTED") == []
    logs = [row for row in listed if row["type"] == "COMMIT_LOG"]
    for offset in (0, 59):
        (found,) = rows("A", "1", "--offset", str(offset))
        assert found in logs
        assert found["first_offset"] <= offset < found["end_offset"]
    invoke(scrubbed.tier, *NAMED, "segments", "A", "1", "--offset", "60", status=1)
    invoke(scrubbed.tier, *NAMED, "segments", "A", "--offset", "0", status=2)
