"""What a command imports: each library costs every start of it time and memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import run, settings
from tests.support.golden import ROCKETMQ_533, unpacked

READING = {
    "cachetools",
    "click",
    "google_crc32c",
    "isal",
    "lz4",
    "numpy",
    "orjson",
    "rich",
    "zstandard",
}
"""What a command needs that reads a tier, without a file of settings. Neither Arrow, nor
Prometheus, nor an event loop's portal. isal, a compiled module of 2 ms, computes the CRC of each
body that a read compares, in a fifth of zlib's time."""
OURS = {"tieredstore", "container", "dispatcher", "fetcher", "provider"}
LOADED = """
import sys, sysconfig
before = set(sys.modules)
from tieredstore.cli.main import main

try:
    main()
except SystemExit as end:
    assert not end.code, end.code
finally:
    theirs = tuple(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", "") or "").startswith(theirs):
            print(name.partition(".")[0], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that name a tier; read only."""
    tree = unpacked(ROCKETMQ_533)
    given = settings(tree, tmp_path_factory.mktemp("imports") / "tier")
    run(*given, "tier", tree.store)
    return given


def loaded_by(*words: str | Path) -> set[str]:
    """The third-party packages that one run of the command line imports."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return set(done.stderr.split()) - OURS


@pytest.mark.process
@pytest.mark.parametrize("words", ["topics", "read G_Orders 0 --max 1"])
def test_a_command_that_reads_imports_these_libraries_and_no_other(
    given: list[str], words: str
) -> None:
    loaded = loaded_by(*given, *words.split())
    assert "pyarrow" not in loaded, "it takes 0.2 s and 170 MB"
    assert loaded == READING
