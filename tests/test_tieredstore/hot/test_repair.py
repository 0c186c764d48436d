"""A damaged hot log is repaired: what is sound stays, offsets stay, damaged bytes are kept."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from provider.errors import Corrupt, Denied, OutOfRange
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, appender_at, new_message, put, readable
from tests.support.level import by_level
from tieredstore.hot.log.repair import HotDamage, open_repair

pytestmark = pytest.mark.usefixtures("without_syncs")
A, B, IDLE = QueueId("A", 0), QueueId("A", 1), QueueId("Idle", 0)
COUNT = 60


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power failure here."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)


def written(root: Path, *, end: str = "closed") -> dict[QueueId, list[bytes]]:
    """Two queues whose records alternate, in several files, and one message of a third."""
    bodies: dict[QueueId, list[bytes]] = {A: [], B: [], IDLE: []}
    with appender_at(root) as store:
        for number in range(COUNT):
            message = new_message(number, topic="A", queue_id=number % 2)
            put(store, [message], now_ms=1000 + number)
            bodies[A if number % 2 == 0 else B].append(message.body)
            if number == 20:
                message = new_message(1000, topic="Idle")
                put(store, [message], now_ms=1000 + number)
                bodies[IDLE].append(message.body)
        store.flush_queues()
        if end == "closed":
            store.close()
    return bodies


def rot(root: Path, body: bytes, *, before: int = 0) -> None:
    """Flip a bit of the record with this body: in the body, or so many bytes before it."""
    for path in sorted((root / "commitlog").iterdir()):
        raw = bytearray(path.read_bytes())
        if (at := raw.find(body)) >= 0:
            raw[at - before] ^= 0x80
            path.write_bytes(raw)
            return
    raise AssertionError(body)


def files_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def look(root: Path) -> HotDamage:
    with open_repair(root, SMALL, ManualClock()) as one:
        return one.look()


def repaired(root: Path) -> HotDamage:
    with open_repair(root, SMALL, ManualClock()) as one:
        damage = one.look()
        one.carry_out(damage)
        return damage


def log_file(root: Path, number: int) -> Path:
    return sorted((root / "commitlog").iterdir())[number]


def rot_several(root: Path) -> None:
    for number in (7, 8, 9, 1000, 30, COUNT - 1):
        rot(root, new_message(number).body)


def middle_file_lost(root: Path) -> None:
    log_file(root, 1).unlink()


HARMS: dict[str, Callable[[Path], object]] = {
    "first": lambda root: rot(root, new_message(0).body),
    "middle": lambda root: rot(root, new_message(31).body),
    "last": lambda root: rot(root, new_message(COUNT - 1).body),
    "idle queue": lambda root: rot(root, new_message(1000).body),
    "several": rot_several,
    "middle file lost": middle_file_lost,
    "last file lost": lambda root: log_file(root, -1).unlink(),
    "two files lost": lambda root: [log_file(root, 1).unlink(), log_file(root, 1).unlink()],
    "short file": lambda root: os.truncate(log_file(root, 1), 1000),
    "empty last file": lambda root: os.truncate(log_file(root, -1), 0),
    "zeros": lambda root: log_file(root, 1).write_bytes(bytes(4096)),
    "garbage": lambda root: log_file(root, 1).write_bytes(b"\xff" * 4096),
    "blank record": lambda root: _flip(log_file(root, 0), _blank_at(log_file(root, 0))),
    "with queue": lambda root: [
        rot(root, new_message(31).body),
        shutil.rmtree(root / "consumequeue/A/1"),
    ],
}


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def _blank_at(path: Path) -> int:
    return path.read_bytes().index(bytes.fromhex("cbd43194"))


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("harm", HARMS)
def test_what_is_sound_stays_at_its_offset_and_nothing_is_corrupt_afterwards(
    harm: str, end: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    bodies = written(root, end=end)
    HARMS[harm](root)
    before = files_of(root)
    damage = look(root)
    assert damage.places
    assert {p: raw for p, raw in files_of(root).items() if p.name != "lock"} == {
        p: raw for p, raw in before.items() if p.name != "lock"
    }, "looking changes nothing"
    whole = {one: raw for one, raw in before.items() if one.parent.name == "commitlog"}

    done = repaired(root)
    assert [one.damage for one in done.places] == [one.damage for one in damage.places]
    for place in done.places:
        name, at = Path(place.damage.path), place.damage.position % 4096
        raw = whole.get(name, b"")[at : place.damage.end - place.damage.position + at]
        assert b"".join(one.read_bytes() for one in place.kept)[: len(raw)] == raw
        assert place.is_missing == (name not in whole)
    assert not look(root).places, "the repair is done"

    for turn in range(2):
        if turn:  # the queues are made from the records, with the same offsets
            shutil.rmtree(root / "consumequeue")
        with appender_at(root) as store:
            found, errors = readable(store)
            assert {type(error) for error in errors} <= {OutOfRange}
            assert not store.recovered.damages
            for queue, all_bodies in bodies.items():
                assert store.next_offsets[queue] == len(all_bodies)
                sound = [body for body in all_bodies if body in b"".join(whole.values())]
                assert found[queue] == sound
            store.close()
    with appender_at(root) as store:
        assert put(store, [new_message(1, topic="A")])[0].queue_offset == COUNT // 2
        assert put(store, [new_message(1, topic="Idle")])[0].queue_offset == 1


@pytest.mark.parametrize("size", [0, 1000])
def test_a_short_file_after_the_durable_end_is_damage_for_a_later_one_is_there(
    size: int, tmp_path: Path
) -> None:
    """The store was killed before it recorded how far the log was durable."""
    root = tmp_path / "store"
    with appender_at(root) as store:
        for number in range(COUNT):
            put(store, [new_message(number, topic="A", body_bytes=200)], now_ms=1000 + number)
    os.truncate(log_file(root, 1), size)
    left = b"".join(files_of(root / "commitlog").values())
    with pytest.raises(Denied, match="`tieredstore repair --hot-log`"), appender_at(root):
        pass
    assert repaired(root).places
    with appender_at(root) as store:
        found, errors = readable(store)
        assert {type(error) for error in errors} == {OutOfRange}
        bodies = [new_message(number, body_bytes=200).body for number in range(COUNT)]
        assert found[A] == [body for body in bodies if body in left]
        assert store.next_offsets == {A: COUNT}


def test_lost_offsets_are_named_by_queue(tmp_path: Path) -> None:
    root = tmp_path / "store"
    written(root)
    rot_several(root)
    lost: dict[QueueId, set[int]] = {}
    for place in look(root).places:
        for queue, parts in place.lost.items():
            lost.setdefault(queue, set()).update(*(range(*part) for part in parts))
    assert lost == {A: {4, 15}, B: {3, 4, 29}, IDLE: {0}}


def test_a_sound_store_has_no_damage(tmp_path: Path) -> None:
    for end in ("closed", "killed"):
        root = tmp_path / end
        written(root, end=end)
        before = files_of(root)
        damage = repaired(root)
        assert not damage
        assert files_of(root) == before


def test_units_that_rotted_lead_to_their_records_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bodies = written(root)
    path = min((root / "consumequeue/A/0").iterdir())
    _flip(path, 3 * 20 + 7)
    (wrong,) = look(root).mended
    assert (wrong.queue, wrong.mended) == (A, [(3, 4)])
    repaired(root)
    with appender_at(root) as store:
        assert readable(store) == (bodies, [])


class Killed(BaseException):
    """The process ends here."""


CALLS = ("pwrite", "fsync", "fdatasync", "mkdir", "open")


class Killer:
    """Ends the process before one of its next system calls."""

    def __init__(self, patch: pytest.MonkeyPatch, calls: int) -> None:
        self.left = calls
        for name in CALLS:
            patch.setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(self, real: Callable[..., object], *arguments: object, **named: object) -> object:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return real(*arguments, **named)


def killed_after(root: Path, calls: int) -> tuple[HotDamage, bool]:
    with open_repair(root, SMALL, ManualClock()) as one, pytest.MonkeyPatch.context() as patch:
        damage = one.look()
        Killer(patch, calls)
        try:
            one.carry_out(damage)
        except Killed:
            return damage, True
        return damage, False


@pytest.mark.scales
@pytest.mark.parametrize("harm", ["several", "two files lost", "short file"])
def test_a_repair_that_is_killed_anywhere_is_run_again(harm: str, tmp_path: Path) -> None:
    template, root = tmp_path / "template", tmp_path / "store"
    bodies = written(template)
    HARMS[harm](template)
    whole = files_of(template / "commitlog")
    damaged = b"".join(whole.values())
    calls, is_killed = 0, True
    while is_killed:
        shutil.copytree(template, root)
        damage, is_killed = killed_after(root, calls)
        repaired(root)
        kept = b"".join(files_of(root).values())
        with appender_at(root) as store:
            found, errors = readable(store)
            assert {type(error) for error in errors} <= {OutOfRange}
            for queue, all_bodies in bodies.items():
                assert store.next_offsets[queue] == len(all_bodies)
                assert found[queue] == [body for body in all_bodies if body in damaged]
        for one in (place.damage for place in damage.places if not place.is_missing):
            raw = whole[template / "commitlog" / Path(one.path).name]
            assert raw[one.position % 4096 :][: one.end - one.position] in kept
        shutil.rmtree(root)
        calls += by_level(quick=3, full=1, nightly=1)
    assert calls > 10


def test_an_error_of_a_damaged_log_names_the_command(tmp_path: Path) -> None:
    root = tmp_path / "store"
    written(root)
    rot(root, new_message(0).body)
    with appender_at(root) as store:
        (error,) = readable(store)[1]
        assert "`tieredstore repair --hot-log`" in str(error)
    for harm in (middle_file_lost, HARMS["last file lost"]):
        harm(root)
        with pytest.raises(Corrupt, match="`tieredstore repair --hot-log`"), appender_at(root):
            pass
