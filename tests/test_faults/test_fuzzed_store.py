"""A broker's files with any bytes changed: tiered, refused or left out, and never a crash."""

import shutil
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fake_broker import FakeBroker
from tests.support.level import by_level
from tieredstore.cli.main import cli

FILES = ("commitlog", "consumequeue/A/0", "consumequeue/B/1", "checkpoint", "config/topics.json")
EXIT_STATUSES = {0, 1, 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    broker = FakeBroker(tmp_path_factory.mktemp("store") / "store")
    for topic, queue_id in (("A", 0), ("B", 1)):
        broker.put_many(topic, queue_id, [b"%04d" % number for number in range(20)])
    broker.create_topic("A", {"queue.type": "SimpleCQ"})
    return broker.directory


def run(tier: Path, *words: str | Path) -> Result:
    named = ("brokerClusterName=c", "brokerName=b", f"tieredStoreFilePath={tier}")
    options = [word for setting in named for word in ("-D", setting)]
    return CliRunner().invoke(cli, [*options, *map(str, words)])


@pytest.mark.slow
@settings(
    max_examples=by_level(quick=40, full=40, nightly=2_000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_bytes_in_a_brokers_files_end_in_a_status_and_a_sound_tier(
    store: Path, tmp_path: Path, data: st.DataObject
) -> None:
    place = Path(tempfile.mkdtemp(dir=tmp_path))  # a store remembers the tier that it had
    copy, tier = shutil.copytree(store, place / "copy"), place / "tier"
    chosen = copy / data.draw(st.sampled_from(FILES))
    (path,) = [chosen] if chosen.is_file() else chosen.iterdir()
    raw = bytearray(path.read_bytes())
    written = len(raw.rstrip(b"\0")) or 40
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, min(written + 20, len(raw) - 1)))
        raw[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), written, written // 2]))])
    tiered = run(tier, "tier", copy)
    assert tiered.exit_code in EXIT_STATUSES, tiered.output
    assert isinstance(tiered.exception, SystemExit | None), tiered.exception
    if tier.exists():
        checked = run(tier, "check")
        assert checked.exit_code in EXIT_STATUSES, checked.output
        assert "record" not in checked.stdout, checked.output
    shutil.rmtree(place)
