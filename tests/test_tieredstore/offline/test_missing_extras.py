"""A command without its extra ends with status 2 and one sentence that names the extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_broker import FakeBroker
from tieredstore import sync

WITHOUT = """
import sys
from importlib import metadata
missing, version = sys.argv[1], metadata.version
def version_of(name):
    if name == missing:
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version, sys.modules[missing] = version_of, None
sys.argv[:] = ["tieredstore", *sys.argv[2:]]
from tieredstore.__main__ import main
sys.exit(main())
"""


IN_S3 = ["-D", "tieredStoreFilePath=s3://bucket/tier"]
BY_NIGHT = pytest.mark.nightly
"""Another command meets the same extra by day."""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier in a directory, for commands that look for one before they need their extra."""
    place = tmp_path_factory.mktemp("tier")
    broker = FakeBroker(place / "store")
    broker.put("T", 0, b"one")
    with sync.follow(broker.directory, place / "tier", broker="b") as follower:
        follower.drain()
    return place / "tier"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "extra", "words"),
    [
        ("pyarrow", "arrow", ["audit"]),
        pytest.param("pyarrow", "arrow", ["rebuild"], marks=BY_NIGHT),
        pytest.param("pyarrow", "arrow", ["rebuild", "--metadata"], marks=BY_NIGHT),
        ("pyarrow", "arrow", ["export", "out"]),
        ("pyiceberg", "iceberg", ["export", "--iceberg", "lake.mq.messages"]),
        pytest.param("pyspark", "spark", ["audit", "--engine", "spark"], marks=BY_NIGHT),
        pytest.param("pyspark", "spark", ["rebuild", "--engine", "spark"], marks=BY_NIGHT),
        ("pyspark", "spark", ["export", "out", "--engine", "spark"]),
        ("starlette", "console", ["console"]),
        ("obstore", "s3", [*IN_S3, "topics"]),
        ("boto3", "s3", [*IN_S3, "doctor"]),
        pytest.param("obstore", "s3", [*IN_S3, "doctor"], marks=BY_NIGHT),
    ],
    ids=lambda value: "-".join(value).replace("--", "") if isinstance(value, list) else value,
)
def test_a_command_without_its_extra_names_it(
    tier: Path, tmp_path: Path, missing: str, extra: str, words: list[str]
) -> None:
    given = ["--tier", str(tier), "-D", "brokerName=b", *words]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, *given],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    (sentence,) = done.stderr.splitlines()
    assert sentence.endswith(f"pip install 'tieredstore[{extra}]'"), sentence
    assert (done.returncode, done.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_broker_is_restored_without_an_extra(tier: Path, tmp_path: Path) -> None:
    words = ["--tier", tier, "-D", "brokerName=b", "restore", tmp_path / "restored"]
    for name in ("tieredstore", "tieredstore.offline.jobs.restore_group"):  # and in workers
        program = f"import sys, {name}; assert not {{'pyarrow', 'pandas'}} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "pyarrow", *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "has 1 message of 1 queue" in done.stdout
