"""Groups of official clients, of 5.x and 4.x, read a tier through `tieredstore serve`."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.lacking import lacks
from tests.support.patience import HANGS_AFTER_S, Patience, completed, ended, wait_until
from tests.support.rocketmq_broker import SHORT_LIVED, SOURCES, BrokerInstall, JavaMissing
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


@pytest.fixture(scope="module")
def go_member(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The member of a group in Go."""
    if shutil.which("go") is None:
        lacks("The client for Go needs go on the PATH.")
    place = tmp_path_factory.mktemp("go")
    shutil.copytree(SOURCES / "go", place, dirs_exist_ok=True)
    program = place / "member"
    # What the client needs itself, and the checksums, are entered into the copy.
    done = completed(["go", "build", "-C", str(place), "-mod=mod", "-o", str(program), "."])
    if done.returncode:
        lacks(f"Go could not build its client: {done.stderr[-600:].strip()}")
    return program


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
def begun(
    served: Served, commands: Mapping[str, Sequence[str]], *, one_by_one: bool = False
) -> Iterator[list[Member]]:
    """A member for each name and command; those that are left are killed at the end.

    `one_by_one`: each has got a message before the next one begins.
    """
    found: list[Member] = []
    try:
        for name, command in commands.items():
            output = served.home / f"{name}.out"
            with output.open("wb") as out, output.with_suffix(".log").open("wb") as log:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=log)
            found.append(Member(process, output))
            if one_by_one:
                wait_for(found[-1:], set())
        yield found
    finally:
        for one in found:
            with one.process:  # closes its input, too
                one.process.kill()


def members(
    served: Served, client: BrokerInstall, group: str, *kinds: str, pause_ms: int = 0
) -> AbstractContextManager[list[Member]]:
    """A member of each kind of the client for Java, which takes `pause_ms` for a message."""
    commands: dict[str, list[str]] = {}
    for number, kind in enumerate(kinds):
        name = f"{group}-{number}"
        commands[name] = client.java(
            "Member",
            *(group, TOPIC, name, kind, str(pause_ms)),
            home=served.home / name,
            heap_mib=128,
            properties={"rocketmq.namesrv.addr": served.address},
            options=SHORT_LIVED,
        )
    return begun(served, commands, one_by_one=pause_ms > 0)


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


def committed(served: Served, group: str) -> dict[str, int]:
    """Offsets of the group, by queue, as the server keeps them."""
    table = json.loads((served.state / "consumerOffset.json").read_text())["offsetTable"]
    return table.get(f"{TOPIC}@{group}", {})


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


@pytest.mark.nightly  # six virtual machines
def test_two_members_take_over_the_queues_of_one_that_was_killed(
    served: Served, client: BrokerInstall
) -> None:
    wanted, group = places(TOPIC), f"CG_killed_{version_of(client)}"
    with members(served, client, group, *["push"] * 3, pause_ms=20) as three:
        killed, *left = three
        with killed.process:
            killed.process.kill()
        before = seen_by(three)
        assert set(before) < wanted
        wait_for(left, wanted - set(before))
        ends = {str(queue): offset + 1 for queue, offset in sorted(wanted)}
        patience = Patience("not all is committed", pids=[one.process.pid for one in left])
        wait_until(lambda: committed(served, group) == ends, patience)
        for one in left:
            one.end()


@pytest.mark.nightly  # builds the client first
def test_a_member_in_go_gets_each_message_once(served: Served, go_member: Path) -> None:
    wanted, group = places(TOPIC), "CG_go"
    with begun(served, {group: [str(go_member), served.address, group, TOPIC]}) as one:
        wait_for(one, wanted)
        one[0].end()
    assert seen_by(one) == Counter(wanted)
    assert served.consume(group, TOPIC, "*", 0) == {}  # the group is at the end
