"""The pages of a real `tier --follow`: what Prometheus and probes see."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port, get, value_of
from tests.support.patience import Patience, ended, wait_until

MESSAGES = "rocketmq_tiered_store_messages_dispatch_total{"


class Served:
    """A broker's directory, and a process that follows it and serves its pages."""

    def __init__(self, directory: Path) -> None:
        self.broker = FakeBroker(directory / "store")
        self.tier = directory / "tier"
        self.port = free_port()
        values = {
            "brokerClusterName": "Served",
            "brokerName": "served-a",
            "tieredStoreFilePath": self.tier,
            "tieredStoreMetricsPort": self.port,
            "tieredStoreGroupCommitTimeout": 20,
        }
        given = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
        self.words = [*given, "tier", str(self.broker.directory), "--follow"]
        self.process = subprocess.Popen(
            [*COMMAND, *self.words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_for(self, path: str, status: int, words: str = "") -> str:
        """The first answer with this status and these words."""
        answer = (0, "")

        def has_come() -> bool:
            nonlocal answer
            assert self.process.poll() is None
            answer = get(self.port, path)
            return answer[0] == status and words in answer[1]

        wait_until(has_come, Patience(lambda: f"{path}: {answer}", marks=lambda: answer))
        return answer[1]

    def wait_for_messages(self, count: int) -> str:
        """The first page of metrics that tells of so many."""
        page = ""

        def has_them() -> bool:
            nonlocal page
            page = self.wait_for("/metrics", 200)
            return value_of(page, MESSAGES) >= count

        wait_until(has_them, Patience(lambda: page, marks=lambda: value_of(page, MESSAGES)))
        return page


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.process.kill()
    served.process.wait()


@pytest.mark.slow
def test_a_follower_tells_how_far_it_is_and_whether_it_works(served: Served) -> None:
    served.broker.put("A", 0, b"body")
    served.broker.put_many("B", 1, [b"body"] * 6)
    page = served.wait_for_messages(7)
    assert value_of(page, MESSAGES + 'cluster="Served",file_type="commit_log",node_id=') == 7
    assert value_of(page, "rocketmq_tiered_store_dispatch_behind{") == 0
    assert value_of(page, "tieredstore_outage{") == 0
    assert value_of(page, "tieredstore_owner{") == 1
    assert value_of(page, "process_resident_memory_bytes{") > 1 << 20
    assert served.wait_for("/healthz", 200) == "ok\n"
    assert served.wait_for("/readyz", 200) == "ok\n"
    assert get(served.port, "/") == (404, "there are /metrics and /healthz and /readyz\n")

    served.tier.rename(away := served.tier.with_name("away"))
    served.broker.put("A", 0, b"late")
    said = served.wait_for("/readyz", 503)
    assert said.startswith("nothing reaches the tier: ")
    assert said.count("\n") == 1
    assert served.wait_for("/healthz", 200) == "ok\n"
    away.rename(served.tier)
    served.wait_for("/readyz", 200)
    served.wait_for_messages(8)

    served.process.send_signal(signal.SIGTERM)
    assert ended(served.process) == 0


@pytest.mark.slow
def test_a_port_that_is_taken_is_a_sentence_and_leaves_the_owner_alone(served: Served) -> None:
    served.wait_for("/readyz", 200)
    taken = run(*served.words, "--take-over", status=2)
    assert "tieredStoreMetricsPort" in taken.err.splitlines()[-1]
    assert served.wait_for("/readyz", 200) == "ok\n"
