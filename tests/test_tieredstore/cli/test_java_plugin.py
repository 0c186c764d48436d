"""`tieredstore java-plugin`: the jar, or what an installation without it says."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tieredstore.cli.commands import config
from tieredstore.cli.main import cli


@pytest.mark.parametrize("has_jar", [True, False])
def test_the_jar_is_written_or_its_lack_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_jar: bool
) -> None:
    packaged = tmp_path / "package" / config.PACKAGED
    if has_jar:
        packaged.parent.mkdir(parents=True)
        packaged.write_bytes(b"a jar")
    monkeypatch.setattr(config, "files", lambda _: tmp_path / "package")
    library = tmp_path / "broker" / "lib"
    done = CliRunner().invoke(cli, ["java-plugin", str(library)])
    if has_jar:
        assert (done.exit_code, done.stdout.splitlines()) == (
            0,
            [
                "messageStorePlugIn=io.tieredstore.rocketmq.TieredStorePlugin",
                "tieredStoreServeAddress=127.0.0.1:10970",
                "tieredStoreServePort=10970",
            ],
        )
        assert (library / config.JAR).read_bytes() == b"a jar"
    else:
        assert done.exit_code == 2
        assert "run `make plugin-jar` in a checkout" in done.stderr
        assert not library.exists()
