"""Groups of official clients, of 5.x and 4.x, read a tier through `tieredstore serve`."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.lacking import lacks
from tests.support.patience import HANGS_AFTER_S, Patience, ended, wait_until
from tests.support.rocketmq_broker import SHORT_LIVED, BrokerInstall, JavaMissing
from tests.test_interop.test_serve import Served, places, serving

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

TOPIC = "G_Orders"


@pytest.fixture(scope="module")
def served(rocketmq: BrokerInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(rocketmq, tmp_path_factory.mktemp("clients")) as one:
        yield one


@pytest.fixture(scope="module", params=["5.5.0", "4.9.8"])
def client(request: pytest.FixtureRequest) -> BrokerInstall:
    """Jars of the client alone."""
    try:
        return BrokerInstall.fetched_client(request.param)
    except JavaMissing as missing:
        lacks(str(missing))


class Member:
    """Process of a member of a group, and the places of the messages that it got."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self._output = process, output

    def places(self) -> Counter[tuple[int, int]]:
        """How often each message came."""
        lines = self._output.read_text().splitlines()
        return Counter((int(queue), int(offset)) for queue, offset in map(str.split, lines))

    def end(self) -> None:
        """Has it commit its offsets and end."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.close()
        assert ended(self.process) == 0


@contextmanager
def members(
    served: Served, client: BrokerInstall, group: str, *kinds: str
) -> Iterator[list[Member]]:
    """A member of each kind; those that are left are killed at the end."""
    found: list[Member] = []
    try:
        for number, kind in enumerate(kinds):
            name = f"{group}-{number}"
            command = client.java(
                "Member",
                *(group, TOPIC, name, kind, "0"),
                home=served.home / name,
                heap_mib=128,
                properties={"rocketmq.namesrv.addr": served.address},
                options=SHORT_LIVED,
            )
            output = served.home / f"{name}.out"
            with output.open("wb") as out, output.with_suffix(".log").open("wb") as log:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=log)
            found.append(Member(process, output))
        yield found
    finally:
        for one in found:
            one.process.kill()
            one.process.wait()


def seen_by(group: list[Member]) -> Counter[tuple[int, int]]:
    return sum((one.places() for one in group), Counter[tuple[int, int]]())


def wait_for(group: list[Member], wanted: set[tuple[int, int]]) -> None:
    """Until the members got a message, and all that are wanted, together."""

    def is_there() -> bool:
        assert not any(one.process.poll() for one in group), "a member failed"
        seen = seen_by(group)
        return bool(seen) and set(seen) >= wanted

    patience = Patience(
        "messages are missing",
        marks=lambda: len(seen_by(group)),
        pids=[one.process.pid for one in group],
    )
    wait_until(is_there, patience)


def version_of(client: BrokerInstall) -> str:
    return client.library.parent.name.replace(".", "_")


@pytest.mark.parametrize("kind", ["push", "orderly", "lite"])
def test_a_member_gets_each_message_once(served: Served, client: BrokerInstall, kind: str) -> None:
    wanted, group = places(TOPIC), f"CG_{kind}_{version_of(client)}"
    with members(served, client, group, kind) as one:
        wait_for(one, wanted)
        one[0].end()
    assert seen_by(one) == Counter(wanted)


def test_each_member_that_is_broadcast_to_gets_every_message(
    served: Served, client: BrokerInstall
) -> None:
    wanted, group = places(TOPIC), f"CG_all_{version_of(client)}"
    with members(served, client, group, "broadcasting", "broadcasting") as both:
        for one in both:
            wait_for([one], wanted)
            one.end()
    assert [one.places() for one in both] == [Counter(wanted)] * 2
