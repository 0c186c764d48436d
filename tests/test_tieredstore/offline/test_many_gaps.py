"""Queues with very many gaps cost no more for each than others, nor tiers of very many queues."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from container.metadata.operations import PutQueue, PutTopic
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX, segment_name
from tests.bench.scan_data import splits_of, write_logs
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.audit_job import AuditReducer, QueueOffsets, SplitResult
from tieredstore.offline.jobs.metadata_job import RemakeJob, Round, SegmentFile
from tieredstore.offline.jobs.rebuild_job import (
    UNIT_COLUMNS,
    UNITS,
    RebuildTask,
    UnitRun,
    rebuild_item,
    unpack,
)
from tieredstore.offline.scan.split import TierPlace

QUEUE = QueueId("T", 0)
QUEUES = 5_000
GAPS = 100_000
"""With a look at all of them for each, a test would take minutes."""


@pytest.mark.slow
def test_an_audit_of_a_queue_with_many_gaps() -> None:
    runs = [(10 * number, 10 * number + 9) for number in range(GAPS)]
    gaps = [(behind, behind + 1) for _, behind in runs[:-1]]
    told = SplitResult(0, 1, first=0, ended=1, offsets=runs)

    def found(missing: int) -> list[tuple[str, int]]:
        known = QueueOffsets(0, runs[-1][1], tuple(reversed(gaps[missing:])))
        reducer = AuditReducer(TierPlace("/"), {QUEUE: known}, {})
        (piece,) = reducer(f"split/{QUEUE}", [told.piece(QUEUE)])
        return [
            (one["finding"], one["position"]) for one in orjson.loads(piece.payload)["findings"]
        ]

    assert found(0) == []
    assert found(2) == [("messages-missing", 9), ("messages-missing", 19)]


@pytest.mark.slow
def test_units_go_into_the_files_of_their_runs_however_many_there_are(tmp_path: Path) -> None:
    messages = write_logs(tmp_path, 10, 200 << 10, queues=1)
    (split,) = splits_of(tmp_path, 1 << 40)

    def units(*runs: UnitRun) -> dict[int, list[list[int]]]:
        """By the first offset of a file, `UNIT_COLUMNS` of each of its units."""
        found: dict[int, list[list[int]]] = {}
        for piece in rebuild_item(RebuildTask(split, 3, runs, ())):
            if piece.target.startswith(UNITS):
                rows = np.array(unpack(piece.payload, len(UNIT_COLUMNS))).T.tolist()
                first = int(piece.target[-20:]) // 20
                assert piece.order == first + len(found.setdefault(first, []))
                found[first] += rows
        return found

    (every,) = units(UnitRun(0, INT64_MAX, 1 << 30)).values()
    assert len(every) == messages
    beyond = [
        UnitRun(10 * messages + number, 10 * messages + number + 1, 1) for number in range(GAPS)
    ]
    short = [UnitRun(first, first + 5, 3) for first in range(4, messages - 5, 7)]
    wanted = {
        at: every[at : min(at + 3, run.behind)]
        for run in short
        for at in range(run.first, run.behind, 3)
    }
    assert len(wanted) > 100
    assert units(*beyond, *reversed(short)) == wanted


def test_what_many_queues_become_is_told_one_by_one(tmp_path: Path) -> None:
    named = {"brokerClusterName": "C", "brokerName": "b", "tieredStoreFilePath": tmp_path}
    files = [SegmentFile(QueueId(f"T{number}", 0), 0, 1_000, 1_000) for number in range(QUEUES)]
    place, config = TierPlace(str(tmp_path)), Config.load(settings=named)
    job, made = RemakeJob(config, place, files, 1 << 27, None, 1), Round()
    log = {"first": 0, "ended": 1_000, "records": 10, "bytes": 1_000, "offsets": [[0, 10]]}
    log |= {"index": {}, "findings": [], "extents": [[0, 1_000, 5, 0, 1, 2]]}
    for file in files:
        made.logs[file.queue] = [log]
        name = segment_name(file.queue, SegmentType.CONSUME_QUEUE, 0)
        made.units[name] = {"first": 0, "bytes": 200, "extents": [[0, 200, 5, 0, 1, 2]]}
    operations, placed, report = job.result(made, is_dry=True)
    assert [type(one) for one in operations] == [PutTopic] * QUEUES + [PutQueue] * QUEUES
    assert len(placed) == len(report.files) == QUEUES
    assert (report.messages, report.findings) == (10 * QUEUES, [])
