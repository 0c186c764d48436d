"""The configuration: keys, units, origins, and one sentence for everything that cannot work."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from provider.setting import Key, Kind, keys_of
from tests.support.golden import ROCKETMQ_533, ROCKETMQ_550, GoldenSet
from tieredstore.config.effective import RECORD_EXTRA_BYTES, Config, machine
from tieredstore.config.keys import JAVA_ONLY, KEYS, OPTIONS
from tieredstore.config.sources import RESEMBLING, ConfigError, environment_name
from tieredstore.hot.options import UntieredPolicy
from tieredstore.store.configured import read_limits

NUMBERS = {Kind.BYTES, Kind.COUNT, Kind.MILLISECONDS, Kind.HOURS, Kind.PERCENT}
BROKER_KEYS = Path(__file__).with_name("broker_keys_5.5.0.txt").read_text().split()
"""Every key of a broker 5.5.0: the fields of its configuration classes."""
OTHER_VALUES = {
    Kind.SWITCH: {False: "true", True: "false"},
    Kind.LEVEL: {"NOT_IN_DISK": "FORCE"},
    Kind.BACKFILL: {"all": "36h"},
    Kind.CHOICE: {
        "ASYNC_FLUSH": "SYNC_FLUSH",
        "KEEP": "DROP",
        "BUCKET": "AES256",
        "PATH": "VIRTUAL",
        "CRC64NVME": "SHA256",
        "FIRST": "CLIENT",
        "inline": "own",
    },
    Kind.DAY_HOURS: {"04": "04;16"},
}
OF_FIELDS = {
    key.name: (options, field) for options in OPTIONS for field, key in keys_of(options).items()
}
ROOMY = {"tieredStoreConsumeQueueMaxSize": 20}
"""Keys whose next possible value is further away than one."""


def load(*defines: str, conf: Path | None = None, **environment: str) -> Config:
    return Config.load(conf=conf, defines=defines, environment=environment)


def sentence(*defines: str, conf: Path | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as failure:
        load(*defines, conf=conf, **environment)
    text = str(failure.value)
    assert "\n" not in text
    return text


def another(key: Key) -> str:
    """A value that is not the default."""
    if key.kind in NUMBERS:
        return str(int(key.default) + ROOMY.get(key.name, 1))
    return OTHER_VALUES.get(key.kind, {}).get(key.default, "else/where")


def field_of(config: Config, name: str) -> object:
    """Value of the field that a key sets."""
    rooms = (
        config.tier,
        config.journal,
        config.upkeep,
        config.posix,
        config.objects,
        config.dispatch,
        config.hot,
        config.hot_write,
        config.retention,
        read_limits(config),
        config.fetcher,
        config.ranges,
        config.disk_cache,
        config.index,
    )
    options, field = OF_FIELDS[name]
    return getattr(next(one for one in rooms if type(one) is options), field)


@pytest.mark.parametrize("name", [n for n, key in KEYS.items() if key.kind is not Kind.SECRET])
def test_a_key_given_in_any_way_is_what_the_layer_gets(name: str, tmp_path: Path) -> None:
    key = KEYS[name]
    text = another(key) if name not in {"brokerClusterName", "brokerName"} else "elsewhere"
    conf = tmp_path / "broker.conf"
    conf.write_text(f"# a comment\n\n{name} = {text}\n")
    ways = {
        f"{conf}:3": load(conf=conf),
        environment_name(name): Config.load(environment={environment_name(name): text}),
        "-D": load(f"{name}={text}"),
    }
    default = load()
    for origin, config in ways.items():
        setting = config.settings[name]
        assert setting.origin == origin
        assert setting.value != default.settings[name].value
        if name in OF_FIELDS:
            assert field_of(config, name) != field_of(default, name)


def test_each_key_of_a_field_is_in_the_table_and_sets_one_field() -> None:
    keys = [key for options in OPTIONS for key in keys_of(options).values()]
    assert [key for key in keys if KEYS[key.name] is not key] == []
    assert len(OF_FIELDS) == len(keys)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path,
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=file\nbrokerClusterName=file\nstoreType=file\n")
    config = load(
        "brokerName=define",
        conf=conf,
        TIEREDSTORE_BROKER_NAME="environment",
        TIEREDSTORE_BROKER_CLUSTER_NAME="environment",
    )
    assert config.broker == "define"
    assert config.cluster == "environment"
    assert config.settings["storeType"].value == "file"


@pytest.mark.parametrize("name", ["brokerName", "tieredStorePinPath", "tieredStoreMetricsPort"])
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_variable_counts_as_unset(name: str, text: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{name}=7\n")
    config = Config.load(conf=conf, environment={environment_name(name): text})
    assert config.settings[name] == load(conf=conf).settings[name]
    assert config.settings[name].origin == f"{conf}:1"


def test_names_default_as_in_rocketmq() -> None:
    config = load()
    assert config.cluster == "DefaultCluster"
    assert config.broker == machine(KEYS["brokerName"]) != ""
    assert config.store_dir == Path.home() / "store"


@pytest.mark.parametrize("golden", [ROCKETMQ_533, ROCKETMQ_550], ids=str)
def test_a_real_brokers_file_is_taken_as_it_is(golden: GoldenSet) -> None:
    config = load(conf=golden.broker_conf)
    assert config.broker == golden.broker
    assert config.tier.commit_log_bytes_max == 262144
    assert config.tier.consume_queue_bytes_max == 10000
    assert config.dispatch.batch_age_s_max == 3.0
    assert config.tier_root == Path("golden/tier")
    assert config.level == "FORCE"
    assert {given.name for given in config.java_only} == {
        "tieredMetadataServiceProvider",
        "tieredBackendServiceProvider",
    }


@pytest.mark.parametrize(
    "name",
    ["maxFilterMessageSize", "storePathDLedgerCommitLog", "clusterName", "brokerId", "brokerIP2"],
)
def test_keys_that_only_the_broker_knows_are_not_looked_at(name: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{name}=whatever\n")
    config = load(conf=conf)
    assert name not in config.settings
    assert [(given.name, given.text) for given in config.foreign] == [(name, "whatever")]


def test_no_key_of_a_broker_is_taken_for_a_misspelling(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    unknown = [name for name in BROKER_KEYS if name not in KEYS and name not in JAVA_ONLY]
    conf.write_text("".join(f"{name}=x\n" for name in unknown))
    assert [given.name for given in load(conf=conf).foreign] == unknown
    assert set(BROKER_KEYS) >= RESEMBLING


def test_keys_that_are_rocketmqs_have_its_names() -> None:
    ours = ("tiered", "readAhead", "commitLogRolling", "objectStore")
    assert [n for n in KEYS if not n.startswith(ours) and n not in BROKER_KEYS] == []


def test_a_key_with_a_dot_is_a_plug_ins_wherever_it_is_given(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("audit.path=/var/audit\n")
    config = load("audit.level=2", conf=conf)
    assert {given.name: given.text for given in config.foreign} == {
        "audit.path": "/var/audit",
        "audit.level": "2",
    }
    assert "unknown key tieredStore.Level" in sentence("tieredStore.Level=2")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("tieredStoreFilepath", "tieredStoreFilePath"),
        ("TieredStoreCommitLogMaxSize", "tieredStoreCommitLogMaxSize"),
        ("tieredStoreGroupComitSize", "tieredStoreGroupCommitSize"),
        ("readaheadCacheEnable", "readAheadCacheEnable"),
        ("readAheadCacheExpire", "readAheadCacheExpireDuration"),
        ("borkerName", "brokerName"),
        ("brokername", "brokerName"),
        ("storePathRootdir", "storePathRootDir"),
        ("commitLogRollingIntervall", "commitLogRollingInterval"),
        ("tieredMetadataServiceProvder", "tieredMetadataServiceProvider"),
    ],
)
def test_a_misspelt_key_is_an_error_that_names_the_right_one(
    wrong: str, right: str, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerId=0\n{wrong}=1\n")
    text = sentence(conf=conf)
    assert f"{conf}:2" in text
    assert f"did you mean {right}?" in text
    assert f"did you mean {right}?" in sentence(f"{wrong}=1")


def test_what_is_given_to_us_alone_must_be_known() -> None:
    assert "unknown key brokerId" in sentence("brokerId=1")
    assert "TIEREDSTORE_BROKER_NAME?" in sentence(TIEREDSTORE_BROKER_NAM="x")
    assert "key=value" in sentence("brokerName")


@pytest.mark.parametrize(
    ("define", "parts"),
    [
        ("tieredStoreCommitLogMaxSize=1g", ["whole number of bytes", "write 1073741824"]),
        ("tieredStoreCommitLogMaxSize=0", ["at least 1024 bytes"]),
        ("tieredStoreCommitLogMaxSize=-1", ["at least 1024 bytes", "-1"]),
        ("tieredStoreCommitLogMaxSize=9999999999999999999999", ["at most", "bytes"]),
        ("tieredStoreConsumeQueueMaxSize=10001", ["multiple of 20", "write 10000"]),
        ("commitLogRollingInterval=1d", ["whole number of hours", "'1d'"]),
        ("tieredStoreGroupCommitTimeout=0.5", ["whole number of ms", "'0.5'"]),
        ("tieredStoreGroupCommitCount=0", ["at least 1 messages"]),
        ("tieredStoreMetricsPort=70000", ["at most 65535, not 70000"]),
        ("tieredStoreGroupCommit=yes", ["true or false", "'yes'"]),
        ("flushDiskType=sync", ["ASYNC_FLUSH or SYNC_FLUSH", "'sync'"]),
        ("tieredStoreUntieredPolicy=drop", ["KEEP or DROP", "'drop'"]),
        ("deleteWhen=24", ["hours from 00 to 23", "04;16", "'24'"]),
        ("diskMaxUsedSpaceRatio=101", ["at most 100 percent"]),
        ("tieredStorageLevel=4", ["DISABLE, NOT_IN_DISK, NOT_IN_MEM, FORCE", "'4'"]),
        ("tieredStoreBackfill=36", ["36h", "'36'"]),
        ("tieredStoreBytesInFlight=1000", ["one batch of tieredStoreGroupCommitSize"]),
        ("readAheadCacheSize=1048576", ["one read of readAheadMessageSizeThreshold"]),
        ("tieredStoreWaitingMax=10", ["tieredStoreWaitingMax (10)", "tieredStoreGroupCommitCount"]),
        ("brokerName=a/b", ["part of a path", "separator"]),
        ("brokerClusterName=..", ["part of a path"]),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(define: str, parts: list[str]) -> None:
    text = sentence(define)
    assert define.partition("=")[0] in text
    for part in parts:
        assert part in text


def test_values_reach_the_layers_in_their_units() -> None:
    config = load(
        "tieredStoreBackfill=36h",
        "tieredStoreGroupCommit=false",
        "tieredStorePollInterval=700",
        "storeType=defaultRocksDB",
        "duplicationEnable=true",
        "tieredStorageLevel=3",
        "tieredStoreBytesInFlight=4194304",
    )
    assert config.dispatch.backfill == timedelta(hours=36)
    assert config.dispatch.batch_age_s_max == 0.0
    assert config.dispatch.poll_s_max == config.hot.poll_s_max == 0.7
    assert config.hot.queues_in_rocksdb
    assert config.hot.replicated
    assert config.level == "FORCE"
    assert config.dispatch.rounds_max == 1
    assert config.hot.round_bytes_max == 4194304
    assert config.memory_bytes_max < load().memory_bytes_max


def test_what_a_broker_says_of_its_store_is_what_ours_does() -> None:
    config = load(
        "mappedFileSizeCommitLog=262144",
        "flushDiskType=SYNC_FLUSH",
        "flushIntervalCommitLog=1500",
        "maxMessageSize=1000",
        "brokerIP1=::1",
        "listenPort=10922",
        "fileReservedTime=48",
        "deleteWhen=04;16;",
        "diskMaxUsedSpaceRatio=88",
        "tieredStoreUntieredPolicy=DROP",
        "storePathCommitLog=/mnt/log",
    )
    written, kept = config.hot_write, config.retention
    assert (written.commit_log_bytes, written.flush) == (262144, "SYNC_FLUSH")
    assert (written.flush_interval_s, written.message_bytes_max) == (1.5, 1000)
    assert (written.store_host, written.commit_log_path) == (("::1", 10922), "/mnt/log")
    assert (kept.reserved_s, kept.delete_hours) == (48 * 3600, {4, 16})
    assert (kept.disk_clean_ratio, kept.untiered) == (0.88, UntieredPolicy.DROP)
    assert config.dispatch.message_bytes_max == 1000 + RECORD_EXTRA_BYTES


def test_a_broker_may_be_called_by_its_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str, port: int, **_others: object) -> list[tuple[Any, ...]]:
        if name != "broker":
            name.encode("ascii")  # a UnicodeError, as of a name that IDNA cannot have
            raise socket.gaierror(-2, "Name or service not known")
        return [
            (socket.AF_INET6, 1, 6, "", ("fe80::1%eth0", port, 0, 2)),
            (socket.AF_INET, 1, 6, "", ("192.0.2.7", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert load("brokerIP1=broker").hot_write.store_host == ("192.0.2.7", 10911)
    for wrong in ("no-such-host.invalid", "b\u00fcro"):
        config = load(f"brokerIP1={wrong}")  # which reading never asks for
        with pytest.raises(ConfigError, match=r"brokerIP1 \(-D\) is an IP address or the name"):
            _ = config.hot_write


def test_settings_of_our_store_that_contradict_each_other_are_named() -> None:
    several = load("storePathCommitLog=a,b")
    with pytest.raises(ConfigError, match=r"storePathCommitLog \(-D\) names several directories"):
        _ = several.hot_write
    config = load("diskMaxUsedSpaceRatio=95")
    with pytest.raises(ConfigError, match=r"diskMaxUsedSpaceRatio 0.95 and diskSpaceWarning"):
        _ = config.retention


def test_plug_ins_are_listed_the_outermost_first() -> None:
    assert load().plug_ins == ["tieredstore.TieredMessageStore"]
    assert load("messageStorePlugIn= a.B, ,c:D,").plug_ins == ["a.B", "c:D"]


def test_a_broker_with_the_plug_in_has_pins_beside_its_store() -> None:
    plug_in = "messageStorePlugIn=io.tieredstore.rocketmq.TieredStorePlugin"
    store = "storePathRootDir=/data/store/"
    assert load(plug_in, store).hot.pin_path == "/data/store-pins"
    assert load(plug_in, store, "tieredStorePinPath=/data/pins").hot.pin_path == "/data/pins"
    assert load(plug_in, store, "tieredStorePinPath=").hot.pin_path == ""
    assert load(plug_in).hot.pin_path == load(store).hot.pin_path == ""


def test_the_tier_must_be_named() -> None:
    with pytest.raises(ConfigError, match="tieredStoreFilePath is not set"):
        assert load().tier_root


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    assert "no such file" in sentence(conf=tmp_path / "none.conf")
    assert "is a directory" in sentence(conf=tmp_path)
    bad = tmp_path / "bad.conf"
    bad.write_text("brokerId=0\nbrokerName=\\u12\n")
    assert "bad.conf:2: invalid" in sentence(conf=bad)
    for garbage, words in (
        (bytes(range(256)), "is no properties file: it holds control characters"),
        ("brokerName=a\n".encode("utf-16"), "is in UTF-16: save it as UTF-8"),
        (b' {"brokerName": "a"}', "is no properties file: it begins with {"),
    ):
        bad.write_bytes(garbage)
        assert f"bad.conf {words}" in sentence(conf=bad)
    bad.write_bytes(b"\xef\xbb\xbfbrokerName=a\n")
    assert Config.load(conf=bad, environment={}).broker == "a"


def test_properties_are_read_as_java_writes_them(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(b"brokerName : b\\u00e9\r\ntieredStoreFilePath=a\\\r\n  b\r\nbrokerName=last")
    config = load(conf=conf)
    assert config.broker == "last"
    assert config.settings["brokerName"].origin == f"{conf}:4"
    assert config.tier_root == Path("ab")


def test_java_only_keys_are_none_of_ours() -> None:
    assert not JAVA_ONLY.keys() & KEYS.keys()


@pytest.mark.parametrize(
    "place", ["/mnt/a tier", "file:///mnt/a%20tier", "FILE://localhost/mnt/a%20tier"]
)
def test_the_tier_is_named_by_a_path_or_a_file_url(place: str) -> None:
    config = Config.load(defines=[f"tieredStoreFilePath={place}"], environment={})
    assert config.tier_root == Path("/mnt/a tier")


@pytest.mark.parametrize("place", ["file://other/tier", "file://"])
def test_a_url_of_another_host_is_refused(place: str) -> None:
    config = Config.load(defines=[f"tieredStoreFilePath={place}"], environment={})
    with pytest.raises(ConfigError, match=r"file://"):
        _ = config.tier_root


def test_settings_of_a_program_win_over_all_else_and_are_checked_alike() -> None:
    settings = {"tieredStoreCrcCheckEnable": False, "readAheadPrefetchMax": 3, "brokerName": "b"}
    given = ["brokerName=a", "tieredStoreReadThreads=7"]
    config = Config.load(defines=given, settings=settings, environment={})
    assert (config.broker, config.fetcher.verify) == ("b", False)
    assert config.settings["brokerName"].origin == "settings"
    assert config.fetcher.prefetches_max == 3
    assert config.posix.read_threads_max == 7
    with pytest.raises(ConfigError, match=r"brokerNam \(settings\): did you mean brokerName"):
        Config.load(settings={"brokerNam": "b"}, environment={})
