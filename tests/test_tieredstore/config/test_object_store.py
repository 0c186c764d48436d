"""Settings of a tier in an object store: its place, its secrets, its defaults."""

from pathlib import Path

import pytest

from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl, location_at
from tieredstore.config.sources import ConfigError

BUCKET = "tieredStoreFilePath=s3://bucket/tier"
SECRETS = {
    "TIEREDSTORE_OBJECT_STORE_ACCESS_KEY": "an-access-key",
    "TIEREDSTORE_OBJECT_STORE_SECRET_KEY": "a-secret-key",
}


def load(*defines: str, environment: dict[str, str] | None = None) -> Config:
    return Config.load(defines=defines, environment=environment or {})


def refusal(*defines: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        _ = load(*defines, environment=environment).tier_root
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://Bucket/a/b/", "s3://Bucket/a/b"),
        ("memory://x/y", "memory://x/y"),
    ],
)
def test_a_url_names_a_place_and_what_is_below_it(text: str, place: str) -> None:
    found = location_at(text)
    assert isinstance(found, TierUrl)
    assert str(found) == place
    assert str(found / "C/b") == f"{place}/C/b"
    assert str(found / "") == place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://", "names no bucket"),
        ("s3:/key:secret@bucket/prefix", "has two slashes"),
        ("S3A:/bucket/prefix", "has two slashes"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket//prefix", "is no place in an object store"),
        ("s3://bucket/prefix?a=b", "is no place in an object store"),
        ("s3://key:secret@bucket/prefix", "credentials come from the environment only"),
    ],
)
def test_other_urls_are_refused_without_being_repeated(text: str, reason: str) -> None:
    assert reason in (said := refusal(f"tieredStoreFilePath={text}"))
    assert "secret@" not in said


def test_rocketmqs_bucket_is_a_place_where_no_other_is_named() -> None:
    assert str(load("objectStoreBucket=b").tier_root) == "s3://b"
    assert str(load("objectStoreBucket=bucket", BUCKET).tier_root) == "s3://bucket/tier"
    for other in ("tier", "s3://bucket2/tier", "memory://bucket/tier"):
        said = refusal("objectStoreBucket=bucket", f"tieredStoreFilePath={other}")
        assert "give only tieredStoreFilePath, such as s3://bucket/PREFIX" in said


def test_secrets_come_from_the_environment_and_are_never_shown(tmp_path: Path) -> None:
    config = load(BUCKET, environment=SECRETS)
    assert (config.storage.access_key, config.storage.secret_key) == tuple(SECRETS.values())
    shown = repr(config) + repr(dict(config.settings))
    assert not any(secret in shown for secret in SECRETS.values())
    assert config.settings["objectStoreSecretKey"].value == "set"


def test_a_secret_in_a_file_is_refused_with_the_variable_to_use(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("objectStoreAccessKey=an-access-key\n")
    with pytest.raises(ConfigError) as caught:
        Config.load(conf=conf, environment={})
    assert "broker.conf:1) is a secret" in str(caught.value)
    assert "TIEREDSTORE_OBJECT_STORE_ACCESS_KEY" in str(caught.value)
    assert "an-access-key" not in str(caught.value)
    assert "is a secret" in refusal("objectStoreSecretKey=a-secret-key")
    conf.write_text("objectStoreAccessKey=\n")
    Config.load(conf=conf, environment={})


def test_one_key_of_two_is_refused() -> None:
    one = {"TIEREDSTORE_OBJECT_STORE_ACCESS_KEY": "an-access-key"}
    assert "belong together: set both" in refusal(BUCKET, environment=one)


@pytest.mark.parametrize(
    ("endpoint", "allowed", "shown"),
    [
        ("https://s3.example.com/", False, "https://s3.example.com"),
        ("oss-cn-hangzhou.example.com", False, "https://oss-cn-hangzhou.example.com"),
        ("http://127.0.0.1:8333", True, "http://127.0.0.1:8333"),
        ("http://[::1]:8333", True, "http://[::1]:8333"),
        ("http://localhost:8333", True, "http://localhost:8333"),
    ],
)
def test_an_endpoint_is_reached_with_tls_but_on_this_host(
    endpoint: str, shown: str, *, allowed: bool
) -> None:
    storage = load(BUCKET, f"objectStoreEndpoint={endpoint}").storage
    assert (storage.endpoint, storage.allow_http) == (shown, allowed)


def test_an_endpoint_without_tls_must_be_allowed() -> None:
    said = refusal(BUCKET, "objectStoreEndpoint=http://s3.example.com")
    assert "use https://, or set objectStoreAllowHttp=true" in said
    allowed = ("objectStoreEndpoint=http://s3.example.com", "objectStoreAllowHttp=true")
    assert load(BUCKET, *allowed).storage.allow_http
    for wrong in ("ftp://x", "https://", "https://k:s@x"):
        assert "objectStoreEndpoint (-D)" in refusal(BUCKET, f"objectStoreEndpoint={wrong}")


def test_defaults_are_others_there_and_given_values_stay() -> None:
    directory, bucket = load("tieredStoreFilePath=tier"), load(BUCKET)
    assert (directory.dispatch.batch_age_s_max, bucket.dispatch.batch_age_s_max) == (0.5, 75.0)
    assert directory.dispatch.round_bytes_due == 0
    assert bucket.dispatch.round_bytes_due == bucket.dispatch.round_bytes_max == 64 << 20
    assert bucket.hot.buffer_bytes_max == bucket.dispatch.round_bytes_max
    assert directory.hot.buffer_bytes_max >= directory.dispatch.round_bytes_max * 5 // 4
    assert not bucket.gives("tieredStoreGroupCommitTimeout")
    given = load(BUCKET, "tieredStoreGroupCommitTimeout=500")
    assert given.dispatch.batch_age_s_max == 0.5
    assert given.gives("tieredStoreGroupCommitTimeout")
    assert load("tieredStoreFilePath=file:///tier").dispatch == directory.dispatch


def test_a_default_fits_what_was_given() -> None:
    small = load(BUCKET, "tieredStoreBytesInFlight=33554432", "tieredStoreWaitingMax=1000")
    assert small.dispatch.batch_bytes_max == small.dispatch.round_bytes_due == 32 << 20
    assert small.dispatch.batch_messages_max == 1000


def test_a_second_store_is_read_as_a_tier_there_and_written_as_before() -> None:
    directory, bucket = load("tieredStoreFilePath=tier"), load(BUCKET)
    both = load("tieredStoreFilePath=tier", "tieredStoreOffloadPath=s3://bucket/second")
    assert both.fetcher == bucket.fetcher != directory.fetcher
    assert both.ranges == bucket.ranges
    assert (both.dispatch, both.index) == (directory.dispatch, directory.index)
    assert bucket.fetcher.window_messages_min == 256
    assert load(BUCKET, "readAheadMessageCountThreshold=32").fetcher.window_messages_min == 32
    in_files = load("tieredStoreFilePath=tier", "tieredStoreOffloadPath=/second")
    assert in_files.fetcher == directory.fetcher
