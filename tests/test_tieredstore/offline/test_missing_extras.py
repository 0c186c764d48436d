"""A job without its extra ends with status 2 and one sentence that names the extra."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
sys.argv[:] = ["tieredstore", *sys.argv[2:]]
from tieredstore.__main__ import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "extra", "words"),
    [
        ("pyarrow", "arrow", ["audit"]),
        ("pyarrow", "arrow", ["rebuild"]),
        ("pyarrow", "arrow", ["rebuild", "--metadata"]),
        ("pyarrow", "arrow", ["export", "out"]),
        ("pyiceberg", "iceberg", ["export", "--iceberg", "lake.mq.messages"]),
    ],
    ids=lambda value: "-".join(value).replace("--", "") if isinstance(value, list) else value,
)
def test_a_job_without_its_extra_names_it(
    tmp_path: Path, missing: str, extra: str, words: list[str]
) -> None:
    given = ["-D", f"tieredStoreFilePath={tmp_path / 'tier'}", "-D", "brokerName=b", *words]
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
