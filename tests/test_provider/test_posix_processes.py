"""A directory shared by real processes: races, deaths, refusals of the operating system."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from provider.posix.store import PosixStore
from tests.support.patience import communicated

RACE = """
import asyncio, sys
from pathlib import Path
from provider.errors import AlreadyExists
from provider.posix.store import PosixStore

async def main() -> None:
    store = PosixStore(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(50):
        try:
            await store.create(f"race/{number}", [sys.argv[2].encode() * 1000])
            print(number)
        except AlreadyExists:
            pass
    await store.close()

asyncio.run(main())
"""

HOLDER = """
import asyncio, sys
from pathlib import Path
from provider.posix.store import PosixStore

async def main() -> None:
    store = PosixStore(Path(sys.argv[1]))
    print(await store.register("@lock"), flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""

FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from provider.errors import Unavailable
from provider.object_store import Append
from provider.posix.store import PosixStore

async def main() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = PosixStore(Path(sys.argv[1]))
    await store.append([Append("f", 0, (b"x" * 1000,))])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    for call in (
        lambda: store.append([Append("f", 1000, (b"y" * 1000,))]),
        lambda: store.create("g", [b"z" * 2000]),
    ):
        try:
            await call()
        except Unavailable as error:
            print(error.path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.append([Append("f", 1000, (b"y" * 1000,))])
    await store.create("g", [b"z" * 2000])
    print([(entry.name, entry.size_bytes) for entry in await store.list("")])
    await store.close()

asyncio.run(main())
"""

DENIED = """
import asyncio, os, sys
from pathlib import Path
from provider.errors import Denied
from provider.object_store import Append
from provider.posix.store import PosixStore

async def main() -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    store = PosixStore(Path(sys.argv[1]))
    for call in (
        store.create("d/x", [b"x"]),
        store.append([Append("d/f", 1, (b"x",))]),
        store.read("d/secret"),
        store.delete(["d/f"]),
    ):
        try:
            await call
        except Denied as error:
            print(error.path)
    await store.close()

asyncio.run(main())
"""


def python(source: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs `source` with our packages."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


@pytest.mark.slow
def test_of_four_processes_that_create_one_name_exactly_one_wins(tmp_path: Path) -> None:
    racers = {letter: python(RACE, tmp_path, letter) for letter in "abcd"}
    for racer in racers.values():
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers.values():
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    won: dict[str, str] = {}
    for letter, racer in racers.items():
        for number in communicated(racer)[0].split():
            assert number not in won, "two winners"
            won[number] = letter
        assert racer.returncode == 0
    assert len(won) == 50
    for number, letter in won.items():
        assert (tmp_path / "race" / number).read_bytes() == letter.encode() * 1000
    assert len(list((tmp_path / "race").iterdir())) == 50


async def ask(root: Path) -> bool:
    store = PosixStore(root)
    try:
        return await store.register("@lock")
    finally:
        await store.close()


def test_nobody_is_alone_while_a_process_lives_even_a_stopped_one(tmp_path: Path) -> None:
    holder = python(HOLDER, tmp_path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert str(holder.pid) in (tmp_path / "@lock").read_text()
    holder.send_signal(signal.SIGSTOP)
    assert not asyncio.run(ask(tmp_path))
    holder.send_signal(signal.SIGKILL)
    communicated(holder)
    assert asyncio.run(ask(tmp_path))


def test_a_full_file_system_is_unavailable_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    output, _ = communicated(python(FULL, tmp_path))
    assert output == "f\ng\n[('f', 2000), ('g', 2000)]\n"


def test_what_the_operating_system_forbids_is_denied() -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        (root / "d").mkdir()
        (root / "d/f").write_bytes(b"ab")
        (root / "d/f").chmod(0o444)
        (root / "d/secret").write_bytes(b"s")
        (root / "d/secret").chmod(0)
        (root / "d").chmod(0o555)
        output, _ = communicated(python(DENIED, root))
        (root / "d").chmod(0o755)
    assert output.split() == ["d/x", "d/f", "d/secret", "d/f"]
