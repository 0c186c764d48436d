"""A process that used S3 ends cleanly, and a forked one is told what to do."""

import subprocess
import sys

from tests.support.patience import communicated
from tests.support.seaweedfs import SeaweedFs

EXITS = 12
"""obstore alone aborts at one exit in six."""

LEAVES = """
import asyncio, sys
from provider.s3 import S3FileSystem

async def main():
    fs = S3FileSystem(asynchronous=True)
    await fs._pipe_file(sys.argv[1], b"x" * 100_000)
    left = [asyncio.create_task(fs._cat_file(sys.argv[1])) for _ in range(8)]
    await left[0]
    for task in left:
        task.cancel()

asyncio.run(main())
"""

FORKS = """
import asyncio, os, sys
from provider.s3 import S3FileSystem

fs = S3FileSystem(asynchronous=True)
asyncio.run(fs._pipe_file(sys.argv[1], b"x"))
child = os.fork()
if child == 0:
    try:
        asyncio.run(S3FileSystem(asynchronous=True)._cat_file(sys.argv[1]))
    except OSError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(program: str, seaweed: SeaweedFs, path: str) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, path],
        env=seaweed.environment | {"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = communicated(process)
    return process.returncode, said


def test_a_process_ends_cleanly_with_requests_under_way(seaweed: SeaweedFs, place: str) -> None:
    ends = [run(LEAVES, seaweed, f"{place}/a") for _ in range(EXITS)]
    assert ends == [(0, "")] * EXITS


def test_a_forked_child_is_refused_with_one_sentence(seaweed: SeaweedFs, place: str) -> None:
    status, said = run(FORKS, seaweed, f"{place}/a")
    assert (status, said.splitlines()[-1]) == (0, "7")
    assert "start processes with multiprocessing's method 'spawn'" in said
