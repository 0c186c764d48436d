"""On other systems than Linux tiers and stores are read, and writing is refused in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

import tieredstore.sync
from provider.errors import Denied
from provider.posix import files
from tests.support.fake_broker import FakeBroker

SCRIPT = """
import tests.support.other_system
import sys
import tieredstore.sync
from provider.errors import Denied

tier, store = sys.argv[1:]
with tieredstore.sync.open(tier) as opened:
    found = [message.body for message in opened.messages("A")]
    assert found == [b"%d" % number for number in range(60)], found
    (message,) = opened.query_message("A", "key-7").messages
    assert message.body == b"7"
    assert opened.check() == []
with tieredstore.sync.read_store(store, tier) as reader:
    assert len(list(reader.read("A"))) == 61
for call in (
    lambda: tieredstore.sync.open_store("own", "own-tier", broker="own"),
    lambda: tieredstore.sync.follow(store, tier, cluster="c", broker="b"),
):
    try:
        call()
    except Denied as error:
        print(error.reason)
"""


@pytest.mark.slow
def test_without_linuxs_calls_all_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    for number in range(60):
        broker.put("A", 0, b"%d" % number, keys=f"key-{number}")
    tier = tmp_path / "tier"
    with tieredstore.sync.follow(broker.directory, tier, cluster="c", broker="b") as follower:
        follower.drain()
    broker.put("A", 0, b"60")
    command = [sys.executable, "-c", SCRIPT, str(tier), str(broker.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    sentence = (
        "stores and tiers are written on Linux alone, and this is darwin: write on a Linux host or "
        "in a container; reading works here"
    )
    assert done.stdout.splitlines() == [sentence, sentence]
    assert not Path("own").exists()


def test_each_writer_is_refused_before_it_changes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_SYSTEM", "darwin")
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"x")
    own, tier = tmp_path / "own", tmp_path / "tier"
    with pytest.raises(Denied, match="written on Linux alone, and this is darwin"):
        tieredstore.sync.open_store(own, tier, broker="own")
    with pytest.raises(Denied, match="written on Linux alone"):
        tieredstore.sync.follow(broker.directory, tier, cluster="c", broker="b")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
