"""Hot logs that commit d710648 wrote, without `durableEnds`: they open, and go on."""

import json
import shutil
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from tests.support.golden import extract
from tests.support.hot_store import appender_at, new_message, put, readable
from tieredstore.hot.options import HotWriteOptions

LEFT = Path(__file__).parents[2] / "golden/hot-log-0.1.0-d710648/hot.tar.xz"
OPTIONS = HotWriteOptions(commit_log_bytes=8192, consume_queue_bytes=400)
QUEUE = QueueId("Orders", 0)
Bodies = dict[QueueId, list[bytes]]


@pytest.fixture(params=["closed", "killed"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Bodies]:
    """The directory, and the bodies that were acknowledged."""
    extract(LEFT, tmp_path)
    root = tmp_path / request.param
    assert not (root / "durableEnds").exists()
    assert (root / "abort").exists() == (request.param == "killed")
    rows = json.loads(root.with_suffix(".json").read_text())
    bodies: Bodies = {}
    for name, messages in rows.items():
        topic, _, number = name.partition("/")
        bodies[QueueId(topic, int(number))] = [
            messages[offset].encode() for offset in sorted(messages, key=int)
        ]
    return root, bodies


def test_a_log_without_durable_ends_opens_and_goes_on(left: tuple[Path, Bodies]) -> None:
    root, bodies = left
    for turn in range(3):
        with appender_at(root, OPTIONS) as store:
            assert readable(store) == (bodies, [])
            assert (root / "durableEnds").exists()
            (place,) = put(store, [new_message(turn)])
            assert place.queue_offset == len(bodies[QUEUE])
            bodies[QUEUE].append(new_message(turn).body)
            (place,) = put(store, [new_message(0, topic="Gone")])
            assert place.queue_offset == 1 + turn, "a deleted topic goes on above its old end"
            bodies.setdefault(QueueId("Gone", 0), []).append(new_message(0).body)
            if turn == 1:
                store.close()


def test_rot_below_its_checkpoint_is_not_truncated(left: tuple[Path, Bodies]) -> None:
    root, bodies = left
    path = root / "commitlog" / ("0" * 20)
    raw = bytearray(path.read_bytes())
    raw[raw.index(bodies[QUEUE][3])] ^= 1
    path.write_bytes(raw)
    with appender_at(root, OPTIONS) as store:
        found, errors = readable(store)
        assert len(errors) == 1
        assert found[QUEUE] == [body for n, body in enumerate(bodies[QUEUE]) if n != 3]


def test_a_lost_queue_is_rebuilt(left: tuple[Path, Bodies]) -> None:
    root, bodies = left
    shutil.rmtree(root / "consumequeue/Orders")
    with appender_at(root, OPTIONS) as store:
        assert readable(store) == (bodies, [])
