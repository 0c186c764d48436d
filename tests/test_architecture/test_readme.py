"""The README's code blocks, run as a reader would run them: in order, in one directory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.golden import ROCKETMQ_533, unpack

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_readmes_blocks_run_in_order(tmp_path: Path) -> None:
    sample = ROCKETMQ_533
    unpack(sample, "closed", tmp_path)
    (tmp_path / "tier").rename(tmp_path / "java-tier")
    (tmp_path / "broker.conf").write_text(sample.broker_conf.read_text())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    blocks = BLOCK.findall(README.read_text())
    assert len(blocks) >= 3
    for language, text in blocks:
        command = (
            ["bash", "-euo", "pipefail", "-c", text]
            if language == "bash"
            else [sys.executable, "-c", text]
        )
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
