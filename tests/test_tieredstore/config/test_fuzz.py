"""No configuration, and no file of a broker's, makes anything but a sentence or a setting."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.messages import damages
from tieredstore.config.effective import Config
from tieredstore.config.keys import KEYS
from tieredstore.config.sources import ConfigError, read_file
from tieredstore.following.directory.layout import StoreLayout, read_topic_attributes

T = TypeVar("T")
GOOD = (
    b"# a broker\nbrokerName : b\\u00e9\r\ntieredStoreFilePath=a\\\r\n  b\n"
    b"!x\nbrokerId=0\n\ntieredStoreCommitLogMaxSize=1073741824\nflush\\ key=a=b:c\n"
)
TOPICS = (
    b'{"dataVersion":{"counter":3},"topicConfigTable":{"G":{"attributes":{"+queue.type":"BatchCQ"},'
    b'"order":false,"perm":6,"readQueueNums":8},"H":{"attributes":null}}}'
)
one_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def value_or_refusal(read: Callable[[], T]) -> T | ConfigError:
    """What `read` returns, or its refusal; any other exception is the test's."""
    try:
        return read()
    except ConfigError as error:
        return error


def is_a_sentence(found: object) -> bool:
    """Whether a refusal is one line; True for what is none."""
    return not isinstance(found, ConfigError) or "\n" not in str(found)


@one_directory
@given(st.one_of(damages(GOOD), st.binary(max_size=200)))
def test_any_file_is_settings_or_a_sentence(tmp_path: Path, raw: bytes) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(raw)
    found = value_or_refusal(lambda: read_file(conf))
    if isinstance(found, ConfigError):
        assert is_a_sentence(found)
    else:
        assert all(int(pair.origin.rpartition(":")[2]) > 0 for pair in found)
        assert is_a_sentence(value_or_refusal(lambda: Config.load(conf=conf, environment={})))


@given(
    st.sampled_from(sorted(KEYS)),
    st.one_of(
        st.text(max_size=30),
        st.integers().map(str),
        st.sampled_from(["", "0", "-1", "9" * 5000, "1e9", "4g", "\0", "\u0663", "NaN", "7d"]),
    ),
)
def test_any_value_of_any_key_is_a_setting_or_a_sentence(key: str, text: str) -> None:
    defines = [f"{key}={text}"]
    assert is_a_sentence(value_or_refusal(lambda: Config.load(defines=defines, environment={})))


@one_directory
@given(st.one_of(damages(TOPICS), st.binary(max_size=100), st.just(b"[" * 100_000)))
def test_any_topics_file_gives_attributes_or_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "topics.json").write_bytes(raw)
    layout = StoreLayout(tmp_path, (tmp_path / "commitlog",), tmp_path / "consumequeue")
    for values in read_topic_attributes(layout).values():
        assert all(isinstance(name, str) for name in values)


@pytest.mark.parametrize(
    "raw",
    [b"a\\\n" * 20_000 + b"=b\n", b"a\\\r" * 20_000 + b"=b\n", b"#" * (1 << 20)],
    ids=["continued by LF", "continued by CR", "a megabyte"],
)
def test_a_file_that_would_take_long_is_refused(tmp_path: Path, raw: bytes) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(raw)
    with pytest.raises(ConfigError, match="longer than a broker's configuration"):
        read_file(conf)
