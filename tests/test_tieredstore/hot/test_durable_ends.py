"""What was durable stays: rot below the durable end, and files of queues that are lost or wrong."""

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.errors import Corrupt, OutOfRange
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, appender_at, new_message, put, readable
from tests.support.traced_calls import CallFaults, TracedCalls
from tests.test_tieredstore.hot.test_repair import killed_after
from tieredstore.hot.appender import Appender
from tieredstore.hot.log import durable_ends, recovery
from tieredstore.hot.log.consume_queues import FILLER
from tieredstore.hot.log.durable_ends import SMALL_QUEUES, Checkpoint, DurableEnds, DurableEndsFile
from tieredstore.hot.log.repair import open_repair
from tieredstore.hot.reading import first_with_record

ENDS = ("durableEnds", "durableEnds.copy")
BUSY, IDLE = QueueId("Busy", 0), QueueId("Idle", 0)
BODIES = [new_message(n).body for n in range(60)]


def fill(store: Appender, *, idle_after: int = 20) -> None:
    """60 messages of one queue in several files of each kind, and one of another queue."""
    for number in range(60):
        if number == idle_after:
            put(store, [new_message(1000, topic="Idle")])
        put(store, [new_message(number, topic="Busy")])


def closed(root: Path) -> Path:
    with appender_at(root) as store:
        fill(store)
        store.close()
    return root


def killed(root: Path) -> Path:
    """All is durable, but for the last message; the store was not closed."""
    with appender_at(root) as store:
        fill(store)
        store.flush_queues()
    return root


def closed_by_older_version(root: Path) -> Path:
    return without_ends(closed(root))


def killed_by_older_version(root: Path) -> Path:
    return without_ends(killed(root))


def without_ends(root: Path) -> Path:
    """The store as a version without `durableEnds` leaves it."""
    for name in ENDS:
        (root / name).unlink()
    checkpoint = Checkpoint.decode((root / "checkpoint").read_bytes())
    (root / "checkpoint").write_bytes(replace(checkpoint, has_ends=False).encode())
    return root


def killed_with_many_queues(root: Path, put_after: int = 0) -> Path:
    """The checkpoint is newer than `durableEnds`, which is written seldom."""
    with appender_at(root) as store:
        put(store, [new_message(2001, topic="First")])
        store.flush_queues()
        with patch.multiple(durable_ends, SMALL_QUEUES=0, GROWTH=1 << 40):
            fill(store)
            store.flush_queues()
            for number in range(put_after):
                put(store, [new_message(3000 + number, topic="Busy")])
    return root


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def place_of(root: Path, body: bytes) -> tuple[Path, int]:
    for path in sorted((root / "commitlog").iterdir()):
        if (at := path.read_bytes().find(body)) >= 0:
            return path, at
    raise AssertionError(body)


@pytest.mark.parametrize(
    "written",
    [
        closed,
        killed,
        closed_by_older_version,
        killed_by_older_version,
        killed_with_many_queues,
    ],
)
@pytest.mark.parametrize("number", [0, 30, 59, 1000])
def test_rot_below_the_durable_end_costs_the_message_that_it_is_in(
    written: Callable[[Path], Path], number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = written(tmp_path)
    path, at = place_of(root, new_message(number).body)
    flip(path, at)
    before = {one: one.read_bytes() for one in (root / "commitlog").iterdir()}
    with appender_at(root) as store:
        found, errors = readable(store)
        assert found[BUSY] == [body for n, body in enumerate(BODIES) if n != number]
        assert len(found[IDLE]) == (number != 1000)
        (error,) = errors
        assert isinstance(error, Corrupt)
        assert error.path == str(path)
        assert error.position <= int(path.name) + at < error.position + 200
        if number in (59, 1000):
            assert f"from position {error.position} on hold no sound record" in caplog.text
            assert [one.position for one in store.recovered.damages] == [error.position]
        assert {one: one.read_bytes() for one in before} == before
        assert [one.queue_offset for one in put(store, [new_message(1, topic="Busy")])] == [60]
        assert [one.queue_offset for one in put(store, [new_message(1, topic="Idle")])] == [1]


def test_every_byte_of_a_log_may_rot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No offset is given twice, and no other message is lost, whatever byte it is."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # no power failure here
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    root = tmp_path / "store"
    with appender_at(root) as store:
        put(store, [new_message(n, topic="Busy") for n in range(6)])
        put(store, [new_message(1000, topic="Idle")])
        end = store.end
        store.close()
    path = root / "commitlog" / ("0" * 20)
    whole = path.read_bytes()
    for at in range(0, end, 7):
        flip(path, at, at % 8)
        with appender_at(root) as store:
            found, errors = readable(store)
            assert sum(map(len, found.values())) + len(errors) == 7
            assert len(errors) <= 1
            assert store.next_offsets == {BUSY: 6, IDLE: 1}
            assert store.end == end
            store.close()
        path.write_bytes(whole)


def newest(root: Path) -> Path:
    return max((root / "consumequeue/Busy/0").iterdir())


def overwrite(*files: Path) -> None:
    """Put RocketMQ's fillers into ConsumeQueue files, which hide their messages."""
    for path in files:
        path.write_bytes(FILLER * (path.stat().st_size // len(FILLER)))


LOSSES: dict[str, Callable[[Path], object]] = {
    "newest file": lambda root: newest(root).unlink(),
    "oldest file": lambda root: min((root / "consumequeue/Busy/0").iterdir()).unlink(),
    "middle file": lambda root: sorted((root / "consumequeue/Busy/0").iterdir())[2].unlink(),
    "all files": lambda root: [one.unlink() for one in (root / "consumequeue/Busy/0").iterdir()],
    "queue": lambda root: shutil.rmtree(root / "consumequeue/Busy/0"),
    "topic": lambda root: shutil.rmtree(root / "consumequeue/Busy"),
    "all queues": lambda root: shutil.rmtree(root / "consumequeue"),
    "empty file": lambda root: os.truncate(newest(root), 0),
    "short file": lambda root: os.truncate(newest(root), 60),
    "zeros": lambda root: newest(root).write_bytes(bytes(200)),
    "fillers": lambda root: overwrite(newest(root)),
    "fillers in the oldest file": lambda root: overwrite(
        min((root / "consumequeue/Busy/0").iterdir())
    ),
    "fillers in all files": lambda root: overwrite(*(root / "consumequeue/Busy/0").iterdir()),
    "filler of an idle queue": lambda root: overwrite(*(root / "consumequeue/Idle/0").iterdir()),
    "ones": lambda root: newest(root).write_bytes(b"\xff" * 200),
    "older units": lambda root: shutil.copy(
        min((root / "consumequeue/Busy/0").iterdir()), newest(root)
    ),
    "00 beside 0": lambda root: (root / "consumequeue/Busy/00").mkdir(),
    "units of another queue": lambda root: shutil.copytree(
        root / "consumequeue/Busy/0", root / "consumequeue/Busy/1"
    ),
}


@pytest.mark.parametrize("written", [closed, killed])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_queue_whose_files_are_lost_is_rebuilt_and_no_offset_is_given_twice(
    loss: str, written: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = written(tmp_path)
    LOSSES[loss](root)
    for turn in range(2):
        with appender_at(root) as store:
            found, errors = readable(store)
            assert found[BUSY] == BODIES + [BODIES[0]] * turn
            assert (len(found[IDLE]), errors) == (1, [])
            assert [one.queue_offset for one in put(store, [new_message(0, topic="Busy")])] == [
                60 + turn
            ]
            if turn:
                assert store.recovered.messages_scanned <= 1, "it was mended by the first start"
            store.close()


class KilledError(Exception):
    """The end of a start whose files are written, before `durableEnds` says so."""


def killed_start(root: Path) -> None:
    with (
        patch.object(Appender, "_begin_deleted", side_effect=KilledError),
        pytest.raises(KilledError),
        appender_at(root),
    ):
        pass


@pytest.mark.parametrize("loss", LOSSES)
def test_fillers_of_a_start_that_was_killed_are_known(loss: str, tmp_path: Path) -> None:
    """Units whose records retention deleted become fillers where a queue is rebuilt."""
    root, other = tmp_path / "root", tmp_path / "other"
    with appender_at(root) as store:
        fill(store, idle_after=55)
        store.flush_queues()
        store.delete_oldest(store.log.bases[:1])
        kept = len(readable(store)[0][BUSY])
        store.queues.delete_below(BUSY, 60 - kept)
        store.close()
    assert kept % 10, "a file has units of both"
    LOSSES[loss](root)
    shutil.copytree(root, other)
    killed_start(root)
    found: list[object] = []
    for place in (root, other):
        with appender_at(place) as store:
            messages, errors = readable(store)
            found.append((messages, [type(one) for one in errors]))
    assert found[0] == found[1], "as a start that was not killed"


@pytest.mark.parametrize("written", [closed, killed])
@pytest.mark.parametrize("number", [1, 2])
def test_fillers_that_replace_earlier_units_hide_no_message(
    number: int, written: Callable[[Path], Path], tmp_path: Path
) -> None:
    """A start reads the last units alone. A reader meets the others."""
    root = written(tmp_path)
    path = sorted((root / "consumequeue/Busy/0").iterdir())[number]
    overwrite(path)
    with appender_at(root) as store:
        found, errors = readable(store)
        assert found[BUSY] == BODIES[: number * 10] + BODIES[number * 10 + 10 :]
        assert [one.path for one in errors if isinstance(one, Corrupt)] == [str(path)] * 10
    with open_repair(root, SMALL, ManualClock()) as repair:
        repair.carry_out(repair.look())
    with appender_at(root) as store:
        assert readable(store) == ({BUSY: BODIES, IDLE: [new_message(1000).body]}, [])


@pytest.mark.parametrize("number", [30, 59])
def test_fillers_of_a_repair_and_of_a_queue_that_continues_elsewhere_are_known(
    number: int, tmp_path: Path
) -> None:
    root = closed(tmp_path)
    with appender_at(root) as store:
        store.continue_queues({IDLE: 7})
        put(store, [new_message(1000, topic="Idle")])
        store.close()
    flip(*place_of(root, new_message(number).body))
    with open_repair(root, SMALL, ManualClock()) as repair:
        repair.carry_out(repair.look())
    for _ in range(2):
        with appender_at(root) as store:
            assert store.recovered.messages_scanned == 0
            found, errors = readable(store)
            assert found[BUSY] == BODIES[:number] + BODIES[number + 1 :]
            assert found[IDLE] == [new_message(1000).body]
            assert all(isinstance(one, OutOfRange) for one in errors)
            store.close()
    with open_repair(root, SMALL, ManualClock()) as repair:
        assert not repair.look()


def test_rot_and_a_lost_queue_cost_the_message_with_the_rot(tmp_path: Path) -> None:
    root = closed(tmp_path)
    for number in (0, 30, 59):
        flip(*place_of(root, new_message(number).body))
    shutil.rmtree(root / "consumequeue/Busy")
    with appender_at(root) as store:
        found, errors = readable(store)
        assert found[BUSY] == [b for n, b in enumerate(BODIES) if n not in (0, 30, 59)]
        assert [type(one) for one in errors] == [Corrupt, Corrupt]
        assert len(store.recovered.damages) == 3
        assert store.next_offsets == {BUSY: 60, IDLE: 1}


def test_a_file_that_retention_deleted_may_come_back_by_a_power_failure(tmp_path: Path) -> None:
    """Entries of a directory reach some disks in any order, and files may have come back."""
    kept = tmp_path / "kept"
    with appender_at(tmp_path / "store") as store:
        for number in range(200):
            put(store, [new_message(number, topic="Busy")])
        store.flush_queues()
        files = tmp_path / "store/consumequeue/Busy/0"
        shutil.copytree(files, kept)
        store.delete_oldest(store.log.bases[:-1])
        store.queues.delete_below(BUSY, 170)
        store.close()
    left = {path.name for path in files.iterdir()}
    gone = sorted({path.name for path in kept.iterdir()} - left)
    assert len(gone) > 10
    for back in (gone[:1], gone[3:4], gone[:2], gone[-1:], gone):
        state = tmp_path / "state"
        shutil.copytree(tmp_path / "store", state)
        for name in back:
            shutil.copy(kept / name, state / "consumequeue/Busy/0" / name)
        with appender_at(state) as store:
            assert readable(store)[0][BUSY][-1] == new_message(199).body
            assert put(store, [new_message(0, topic="Busy")])[0].queue_offset == 200
        shutil.rmtree(state)


@pytest.mark.parametrize("written", [closed, killed])
@pytest.mark.parametrize("names", [["durableEnds"], ["durableEnds.copy"]])
@pytest.mark.parametrize("harm", ["lost", "rot", "empty"])
def test_one_of_two_copies_is_enough(
    harm: str, names: list[str], written: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = written(tmp_path)
    for name in names:
        if harm == "lost":
            (root / name).unlink()
        elif harm == "rot":
            flip(root / name, 40)
        else:
            (root / name).write_bytes(b"")
    newest(root).unlink()
    with appender_at(root) as store:
        assert readable(store) == ({BUSY: BODIES, IDLE: [new_message(1000).body]}, [])
    assert DurableEndsFile(root / "durableEnds").read() is not None


@pytest.mark.parametrize("written", [closed, killed])
def test_a_store_without_the_file_is_scanned_where_it_had_one(
    written: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = written(tmp_path)
    for name in ("durableEnds", "durableEnds.copy"):
        (root / name).unlink()
    newest(root).unlink()
    with appender_at(root) as store:
        assert readable(store)[0][BUSY] == BODIES


def harm_ends(root: Path) -> None:
    for name in ENDS:
        flip(root / name, 40)


def harm_checkpoint(root: Path) -> None:
    flip(root / "checkpoint", 4096 - 10)


def lose_ends(root: Path) -> None:
    for name in ENDS:
        (root / name).unlink()


def zero_last_records(root: Path) -> None:
    path = max((root / "commitlog").iterdir())
    raw = path.read_bytes()
    path.write_bytes(bytes(len(raw)))


def empty_last_file(root: Path) -> None:
    os.truncate(max((root / "commitlog").iterdir()), 0)


def lose_last_file(root: Path) -> None:
    max((root / "commitlog").iterdir()).unlink()


def rot_last(root: Path) -> None:
    flip(*place_of(root, new_message(59).body))


def rot_middle(root: Path) -> None:
    flip(*place_of(root, new_message(30).body))


LOG_HARMS = [zero_last_records, empty_last_file, lose_last_file, rot_last, rot_middle]


@pytest.mark.parametrize("written", [closed, killed])
@pytest.mark.parametrize("deleted", [1, 2])
def test_units_that_point_to_deleted_records_hide_no_message(
    written: Callable[[Path], Path], deleted: int, tmp_path: Path
) -> None:
    """Whether one rotted, or older ones were written over the first of the rest."""
    template, root = tmp_path / "template", tmp_path / "store"
    with appender_at(written(template)) as store:
        store.delete_oldest(store.log.bases[:deleted])
        first = first_with_record(store, BUSY)
        if written is closed:
            store.close()
    base = first * 20 // 200 * 200
    name = f"consumequeue/Busy/0/{base:020}"
    harms = [(at, bytes(1)) for at in range(first * 20 - base + 4, 200, 20)] + [
        (first * 20 - base, (template / name).read_bytes()[:size]) for size in range(20, 200, 20)
    ]
    for at, units in harms:
        shutil.copytree(template, root)
        raw = (root / name).read_bytes()
        (root / name).write_bytes((raw[:at] + units + raw[at + len(units) :])[:200])
        with appender_at(root) as store:
            assert readable(store) == ({BUSY: BODIES[first:], IDLE: []}, []), (at, units)
        shutil.rmtree(root)


@pytest.mark.parametrize("written", [closed, killed])
@pytest.mark.parametrize("harms", [[harm_ends], [lose_ends], [harm_ends, harm_checkpoint]])
@pytest.mark.parametrize("harm_log", LOG_HARMS)
def test_damage_of_both_copies_and_of_the_log_is_refused_until_it_is_repaired(
    harm_log: Callable[[Path], None],
    harms: list[Callable[[Path], None]],
    written: Callable[[Path], Path],
    tmp_path: Path,
) -> None:
    root = written(tmp_path)
    for harm in [*harms, harm_log]:
        harm(root)
    before = {path: path.read_bytes() for path in root.rglob("*/0*") if path.is_file()}
    with pytest.raises(Corrupt, match="`tieredstore repair --hot-log`"), appender_at(root):
        pass
    assert {path: path.read_bytes() for path in before} == before, "nothing was changed"
    left = b"".join(before[path] for path in sorted(before) if path.parent.name == "commitlog")
    with open_repair(root, SMALL, ManualClock()) as repair:
        damage = repair.look()
        assert damage.ends is not None
        repair.carry_out(damage)
    with open_repair(root, SMALL, ManualClock()) as repair:
        assert not repair.look()
    with appender_at(root) as store:
        found, _ = readable(store)
        assert found[BUSY] == [body for body in BODIES if body in left]
        assert found[IDLE] == [new_message(1000).body]
        assert [one.queue_offset for one in put(store, [new_message(1, topic="Busy")])] == [60]
        assert [one.queue_offset for one in put(store, [new_message(1, topic="Idle")])] == [1]


@pytest.mark.parametrize("written", [closed, killed])
@pytest.mark.parametrize("harms", [[harm_ends], [lose_ends], [harm_ends, harm_checkpoint]])
def test_damage_of_both_copies_alone_costs_a_scan_and_is_logged(
    harms: list[Callable[[Path], None]],
    written: Callable[[Path], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = written(tmp_path)
    for harm in harms:
        harm(root)
    with appender_at(root) as store:
        assert readable(store) == ({BUSY: BODIES, IDLE: [new_message(1000).body]}, [])
        assert "durableEnds and durableEnds.copy" in caplog.text
        assert store.next_offsets == {BUSY: 60, IDLE: 1}
        store.close()
    caplog.clear()
    with appender_at(root):
        assert not caplog.text


@pytest.mark.parametrize("name", ["durableEnds", "consumequeue/Idle"])
def test_a_queue_without_records_is_missed_without_durable_ends(name: str, tmp_path: Path) -> None:
    """Its records expired. Nothing but its units and `durableEnds` has its next offset."""
    with appender_at(tmp_path) as store:
        fill(store, idle_after=0)
        store.flush_queues()
        store.delete_oldest(store.log.bases[:2])
        store.close()
    harm_ends(tmp_path)
    if name == "durableEnds":
        with appender_at(tmp_path) as store:
            assert store.next_offsets == {BUSY: 60, IDLE: 1}
        return
    shutil.rmtree(tmp_path / name)
    with pytest.raises(Corrupt, match="next offsets are not known"), appender_at(tmp_path):
        pass


@pytest.mark.parametrize("at", range(0, 44, 3))
def test_a_checkpoint_that_rotted_does_not_move_the_durable_end(at: int, tmp_path: Path) -> None:
    root = closed(tmp_path)
    for bit in range(8):
        flip(root / "checkpoint", 4096 - 1 - at, bit)
        with appender_at(root) as store:
            assert store.next_offsets == {BUSY: 60, IDLE: 1}
            assert store.recovered.damages == []
            store.close()


@pytest.mark.parametrize("harm_log", LOG_HARMS)
def test_rot_of_the_checkpoint_is_not_another_program(
    harm_log: Callable[[Path], None], tmp_path: Path
) -> None:
    """A broker that ended cleanly leaves a log that is sound to its end."""
    root = closed(tmp_path)
    flip(root / "checkpoint", 7)
    harm_log(root)
    if harm_log is rot_middle:  # the end is there, so `durableEnds` is believed
        with appender_at(root) as store:
            assert store.next_offsets == {BUSY: 60, IDLE: 1}
            assert len(readable(store)[1]) == 1
        return
    with pytest.raises(Corrupt, match="`tieredstore repair --hot-log`"), appender_at(root):
        pass


TORN: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "checkpoint, short": lambda root: os.truncate(root / "checkpoint", 3395),
    "checkpoint, rotten": lambda root: flip(root / "checkpoint", 4095),
    "checkpoint, lost": lambda root: (root / "checkpoint").unlink(),
    "durableEnds": lambda root: [flip(root / name, 30) for name in STATE[:2]],
    "all": lambda root: [os.truncate(root / name, 30) for name in STATE[:3]],
}


@pytest.mark.parametrize("torn", TORN)
def test_records_above_the_durable_end_are_written_again(torn: str, tmp_path: Path) -> None:
    """After a failed sync the page cache has what the disk lacks, and no later sync writes it."""
    base = killed(tmp_path / "store")
    with appender_at(base) as store:
        end = put(store, [new_message(0, topic="Busy")])[0].position
        path = str(store.log.path(store.log.base_of(end)))
    TORN[torn](base)
    calls = TracedCalls(str(base), CallFaults(), Random(0))
    with calls.traced(), appender_at(base) as store:
        assert store.next_offsets[BUSY] == 61
    made: list[Any] = calls.calls
    fds = {call[1] for call in made if call[0] == "open" and call[2] == path}
    written = [call[3] for call in made if call[0] == "write" and call[1] in fds]
    assert any(new_message(0).body in data for data in written)


STATE = ("durableEnds", "durableEnds.copy", "checkpoint", "config")


@pytest.mark.parametrize("deletes", [False, True])
def test_state_that_is_older_than_a_closed_log_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, deletes: bool
) -> None:
    """State files from a copy: later messages are there, and a later deletion is unknown."""
    root, kept = closed(tmp_path / "store"), tmp_path / "kept"
    shutil.copytree(root, kept)
    with appender_at(root) as store:
        put(store, [new_message(60, topic="Busy")])
        if deletes:
            store.delete_topics({"Idle"})
        store.close()
    assert not caplog.text
    put_back(kept, root, *STATE)
    with appender_at(root) as store:
        assert readable(store)[0][BUSY] == [*BODIES, new_message(60).body]
        assert "older than its CommitLog" in caplog.text
        assert store.next_offset(IDLE) == 1
        store.close()
    caplog.clear()
    with appender_at(root):
        assert not caplog.text


def test_a_java_broker_that_went_on_is_believed(tmp_path: Path) -> None:
    """It wrote its `checkpoint`, truncated the log, and put other messages there."""
    root = closed(tmp_path / "store")
    other = tmp_path / "other"
    with appender_at(other) as store:
        put(store, [new_message(n, topic="Busy") for n in range(3)])
        store.close()
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(root / name)
        shutil.copytree(other / name, root / name)
    ours = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(Checkpoint(5, 5).encode()[:40] + ours[40:])
    with appender_at(root) as store:
        assert readable(store) == ({BUSY: BODIES[:3]}, [])
        assert store.next_offsets == {BUSY: 3}


@pytest.mark.parametrize("written", [closed, killed])
def test_a_lost_log_goes_on_above_its_offsets(
    written: Callable[[Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = written(tmp_path)
    shutil.rmtree(root / "commitlog")
    for turn in range(2):
        with appender_at(root) as store:
            assert put(store, [new_message(0, topic="Busy")])[0].queue_offset == 60 + turn
            assert put(store, [new_message(0, topic="Idle")])[0].queue_offset == 1 + turn
            assert readable(store)[0][BUSY] == BODIES[:1] * (turn + 1)
    assert caplog.text.count("is lost with all its files") == 1


def test_a_lost_newest_log_file_is_named(tmp_path: Path) -> None:
    root = closed(tmp_path)
    last = max((root / "commitlog").iterdir())
    last.unlink()
    with pytest.raises(Corrupt, match="the file is missing") as failure, appender_at(root):
        pass
    assert failure.value.path == str(last)


def older_log(root: Path, put_before: int) -> tuple[Path, int]:
    """Put the CommitLog and its state back from a copy, beside newer ConsumeQueues."""
    kept = root.with_name("kept")
    with appender_at(root) as store:
        fill(store)
        put(store, [new_message(n, topic="Busy") for n in range(60, 60 + put_before)])
        store.close()
    shutil.copytree(root, kept)
    with appender_at(root) as store:
        for number in range(5):
            put(store, [new_message(number, topic="Busy"), new_message(number, topic="New")])
        store.close()
    put_back(kept, root, "commitlog", *STATE[:3])
    return root, 60 + put_before + 5


def put_back(kept: Path, root: Path, *names: str) -> None:
    """Replace files and directories of a store by those of a copy."""
    for name in names:
        if (kept / name).is_dir():
            shutil.rmtree(root / name)
            shutil.copytree(kept / name, root / name)
        else:
            shutil.copy(kept / name, root / name)


@pytest.mark.parametrize("put_before", range(0, 24, 2))
@pytest.mark.parametrize("is_repaired", [False, True])
def test_an_older_log_beside_newer_queues_gives_no_offset_again(
    put_before: int, tmp_path: Path, *, is_repaired: bool
) -> None:
    root, end = older_log(tmp_path / "store", put_before)
    new = QueueId("New", 0)
    if is_repaired:
        with open_repair(root, SMALL, ManualClock()) as repair:
            damage = repair.look()
            assert [dict(one.lost) for one in damage.places]
            repair.carry_out(damage)
            assert not repair.look()
    last = max(int(path.name) for path in (root / "commitlog").iterdir())
    try:
        with appender_at(root) as store:
            assert (store.next_offset(BUSY), store.next_offset(new)) == (end, 5)
            put(store, [new_message(7, topic="Busy"), new_message(8, topic="New")])
            found, errors = readable(store)
            assert found[BUSY][:60] == BODIES
            assert (found[BUSY][-1], found[new][-1]) == (new_message(7).body, new_message(8).body)
            assert {type(one) for one in errors} == {OutOfRange if is_repaired else Corrupt}
            store.close()
    except Corrupt as error:
        refusal = error
    else:
        refusal = None
    assert (refusal is None) or (not is_repaired and refusal.position == last + 4096), refusal


@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_refused_start_leaves_an_older_log_refused(tmp_path: Path, *, is_repaired: bool) -> None:
    """A mark of an open store would make the newer units those of a crash."""
    root, kept = closed(tmp_path / "store"), tmp_path / "kept"
    shutil.copytree(root, kept)
    with appender_at(root) as store:
        put(store, [new_message(n, topic="Busy") for n in range(60, 100)])
        store.close()
    put_back(kept, root, "commitlog", *STATE[:3])
    for _ in range(3):
        with pytest.raises(Corrupt, match="the file is missing"), appender_at(root):
            pass
        assert not (root / "abort").exists()
    if is_repaired:
        with open_repair(root, SMALL, ManualClock()) as repair:
            repair.carry_out(repair.look())
        with appender_at(root) as store:
            assert put(store, [new_message(0, topic="Busy")])[0].queue_offset == 100


@pytest.mark.parametrize("step", ["truncate", "_bring_all", "_without_rest", "_report"])
def test_a_start_that_ends_amid_an_older_log_knows_its_ends_at_the_next_one(
    step: str, tmp_path: Path
) -> None:
    root, end = older_log(tmp_path / "store", 0)
    with (
        patch.object(recovery, step, side_effect=InterruptedError),
        pytest.raises(InterruptedError),
        appender_at(root),
    ):
        pass
    with appender_at(root) as store:
        for topic, offset in (("Busy", end), ("New", 5)):
            assert put(store, [new_message(0, topic=topic)])[0].queue_offset == offset


def of_many_queues_with_a_rotten_end(root: Path) -> None:
    flip(*place_of(killed_with_many_queues(root, 3), new_message(59).body))


def without_ends_with_a_rotten_end(root: Path) -> None:
    harm_ends(closed(root))
    rot_last(root)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize(
    ("harmed", "end"),
    [
        (lambda root: older_log(root, 0), 65),
        (of_many_queues_with_a_rotten_end, 60),
        (without_ends_with_a_rotten_end, 60),
    ],
    ids=["older log", "many queues", "no ends"],
)
def test_a_repair_that_is_killed_anywhere_gives_no_offset_again(
    harmed: Callable[[Path], object], end: int, tmp_path: Path, *, repeats: bool
) -> None:
    """Whether it is repeated before the next start or not, unless that start is refused."""
    template, root = tmp_path / "template", tmp_path / "store"
    harmed(template)
    calls, is_killed = 0, True
    while is_killed:
        shutil.copytree(template, root)
        _, is_killed = killed_after(root, calls)
        if repeats:
            with open_repair(root, SMALL, ManualClock()) as repair:
                repair.carry_out(repair.look())
        refused = nullcontext() if repeats else suppress(Corrupt)
        with refused, appender_at(root) as store:
            assert put(store, [new_message(0, topic="Busy")])[0].queue_offset >= end
        shutil.rmtree(root)
        calls += 1
    assert calls > 5


@pytest.mark.parametrize("lost_after", [0, 3])
@pytest.mark.parametrize("harmed", [[59], [58, 59], [40, 59], [59, 1000]])
def test_offsets_that_a_repair_gives_up_at_the_end_are_not_given_again(
    harmed: list[int], lost_after: int, tmp_path: Path
) -> None:
    """`durableEnds` is older than the `checkpoint`, after which a power failure took records."""
    root = killed_with_many_queues(tmp_path / "store", lost_after)
    for number in harmed:
        flip(*place_of(root, new_message(number).body))
    if lost_after:
        path, at = place_of(root, new_message(3000).body)
        path.write_bytes(path.read_bytes()[:at] + bytes(path.stat().st_size - at))
    with open_repair(root, SMALL, ManualClock()) as repair:
        damage = repair.look()
        assert damage.places
        repair.carry_out(damage)
        assert not repair.look()
    left = [body for n, body in enumerate(BODIES) if n not in harmed]
    for turn in range(2):
        with appender_at(root) as store:
            found, errors = readable(store)
            assert found[BUSY] == left + BODIES[:1] * turn
            assert {type(one) for one in errors} == {OutOfRange}
            for queue, offset in ((BUSY, 60), (IDLE, 1)):
                (one,) = put(store, [new_message(0, topic=queue.topic)])
                assert one.queue_offset == offset + turn
            store.flush_queues()


@pytest.mark.parametrize("put_between", [1, 12, 40, 60, 120])
@pytest.mark.parametrize("recreates", [False, True])
@pytest.mark.parametrize("put_after", [False, True])
def test_an_older_log_whose_later_records_were_deleted_gives_no_offset_again(
    put_between: int, tmp_path: Path, *, recreates: bool, put_after: bool
) -> None:
    """The newer ConsumeQueues show the records after those of a topic that is gone, or nothing."""
    root, kept, gone = closed(tmp_path / "store"), tmp_path / "kept", QueueId("Gone", 0)
    shutil.copytree(root, kept)
    with appender_at(root) as store:
        for number in range(put_between):
            put(store, [new_message(number, topic="Gone")])
        store.delete_topics({"Gone"})
        put(store, [new_message(7, topic="Gone")] * recreates)
        put(store, [new_message(7, topic="Idle")] * put_after)
        whole = readable(store)[0]
        ends = {queue: store.next_offset(queue) for queue in (BUSY, IDLE, gone)}
        store.close()
    put_back(kept, root, "commitlog", *STATE[:3])
    is_missing = False
    try:
        with appender_at(root) as store:
            found, errors = readable(store)
            assert found == whole if not (recreates or put_after) else errors
            for queue, end in ends.items():
                assert put(store, [new_message(9, topic=queue.topic)])[0].queue_offset == end
    except Corrupt as error:
        is_missing = "the file is missing" in str(error)
        assert is_missing
    assert is_missing == (put_between > 12 and (recreates or put_after))


def test_an_older_log_of_a_running_store_with_many_queues_gives_no_offset_again(
    tmp_path: Path,
) -> None:
    """Its `durableEnds` is older than its `checkpoint`."""
    root, kept = killed_with_many_queues(tmp_path / "store"), tmp_path / "kept"
    shutil.copytree(root, kept)
    with appender_at(root) as store:
        put(store, [new_message(60, topic="Busy")])
        store.close()
    put_back(kept, root, "commitlog", *STATE[:3])
    with appender_at(root) as store:
        assert put(store, [new_message(0, topic="Busy")])[0].queue_offset == 61
        assert readable(store)[0][BUSY] == [*BODIES, BODIES[0]]


@pytest.mark.parametrize("name", STATE[:2])
def test_ends_of_a_log_that_was_lost_are_older_than_those_of_the_next_one(
    name: str, tmp_path: Path
) -> None:
    """That log had been written more often. One copy of its ends came back."""
    root, kept = tmp_path / "store", tmp_path / "kept"
    for life, count in enumerate((50, 5)):
        with appender_at(root, clock=ManualClock(1000 * life)) as store:
            for number in range(count):
                put(store, [new_message(number, topic="Busy")])
                store.flush_queues()
            store.close()
        if life == 0:
            root.rename(kept)
    put_back(kept, root, name)
    with appender_at(root) as store:
        assert readable(store) == ({BUSY: BODIES[:5]}, [])
        assert store.next_offsets == {BUSY: 5}


def test_units_after_the_end_of_a_log_that_was_not_closed_are_dropped(tmp_path: Path) -> None:
    root, _ = older_log(tmp_path / "store", 0)
    (root / "abort").touch()
    with appender_at(root) as store:
        assert store.next_offset(BUSY) == 60
        assert readable(store)[0][BUSY] == BODIES


@pytest.mark.parametrize("has_records", [False, True])
def test_units_that_a_java_broker_left_after_its_end_are_dropped(
    tmp_path: Path, *, has_records: bool
) -> None:
    """After a crash it has the times of our last record, if none of its own reached the disk."""
    root, _ = older_log(tmp_path / "store", 0)
    ours = (root / "checkpoint").read_bytes()
    theirs = Checkpoint.decode(ours)
    theirs = replace(theirs, confirm_position=7, log_timestamp=5 if has_records else 1)
    (root / "checkpoint").write_bytes(theirs.encode()[:40] + ours[40:])
    with appender_at(root) as store:
        assert store.next_offset(BUSY) == 60


def test_many_queues_are_written_seldom() -> None:
    few = DurableEnds(100, {QueueId("T", n): 1 for n in range(SMALL_QUEUES)})
    assert few.is_due(101)
    assert not few.is_due(100)
    many = DurableEnds(100, {QueueId("T", n): 1 for n in range(100_000)})
    assert not many.is_due(200 << 20)
    assert many.is_due(300 << 20)
    assert DurableEnds.decode(many.encode()) == many
