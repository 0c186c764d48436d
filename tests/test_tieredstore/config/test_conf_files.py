"""The shipped configuration files are what the program says and takes."""

from pathlib import Path

from tieredstore.config.effective import Config
from tieredstore.config.keys import KEYS, config_template

CONF = Path(__file__).parents[3] / "conf"
LINE_MAX = 132


def test_the_shipped_file_lists_every_key_with_unit_and_meaning() -> None:
    text = (CONF / "broker.conf").read_text()
    assert text == config_template(), "write it anew: tieredstore config --template"
    for key in KEYS.values():
        assert f"\n# {key.meaning}" in text
        left_out = key.is_machines or key.object_default is not None
        assert f"\n{'#' if left_out else ''}{key.name}=" in text
    assert max(map(len, text.splitlines())) <= LINE_MAX


def test_the_shipped_file_used_as_it_is_changes_nothing() -> None:
    shipped = Config.load(conf=CONF / "broker.conf", environment={})
    default = Config.load(environment={})
    assert {name: one.value for name, one in shipped.settings.items()} == {
        name: one.value for name, one in default.settings.items()
    }


def test_differences_from_rocketmqs_defaults_are_said_where_the_key_is() -> None:
    for name in ("tieredStoreGroupCommitTimeout", "tieredStoreBackfill", "readAheadCacheSize"):
        assert "RocketMQ:" in KEYS[name].meaning


def test_the_file_for_s3_names_keys_that_have_an_effect() -> None:
    config = Config.load(conf=CONF / "broker.s3.conf", environment={})
    assert str(config.tier_root) == "s3://my-bucket/tier"
    assert (config.java_only, config.foreign) == ([], [])
    assert (config.limits.upload_bytes_per_s, config.limits.download_bytes_per_s) == (
        20_000_000,
        50_000_000,
    )
    assert config.dispatch.batch_age_s_max == 75.0


def test_the_smallest_file_names_broker_and_tier() -> None:
    config = Config.load(conf=CONF / "broker.minimal.conf", environment={})
    given = {name for name, one in config.settings.items() if one.origin != "default"}
    assert given == {"brokerClusterName", "brokerName", "tieredStoreFilePath"}
