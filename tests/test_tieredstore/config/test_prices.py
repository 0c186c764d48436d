"""The table of prices, and what settings come to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from provider.object.store import RequestMeter
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.config.prices import (
    MONTH_S,
    Limits,
    Load,
    PriceTable,
    estimates,
    forecast,
    offload_estimates,
)
from tieredstore.config.sources import ConfigError

LIMITS = Limits(
    round_age_s=75.0,
    round_bytes=64 << 20,
    snapshot_age_s=900.0,
    owner_check_s=60.0,
    heartbeat_s=30.0,
    upload_bytes_per_s=0,
    download_bytes_per_s=0,
)
TABLE = """
name = "Round prices"
currency = "EUR"
[per_1000_requests]
PUT = 10
LIST = 1
GET = 2
HEAD = 2
DELETE = 0
[per_gib]
stored_a_month = 1
uploaded = 3
downloaded = 5
"""


def test_the_shipped_table_is_that_of_s3() -> None:
    prices = PriceTable.read("")
    assert (prices.name, prices.currency) == ("Amazon S3 Standard, us-east-1", "USD")
    assert prices.cost({"PUT": 1000, "GET": 1000}) == pytest.approx(0.0054)


def test_what_was_requested_is_added_up() -> None:
    meter = RequestMeter()
    for kind in ("PUT", "PUT", "LIST", "GET", "HEAD", "DELETE"):
        meter.made(kind)
    assert (meter.writes, meter.total) == (3, 6)
    assert PriceTable.parse(TABLE, path="t").spent(meter) == pytest.approx(0.025)


def test_an_idle_tier_and_a_busy_one_cost_what_their_requests_do() -> None:
    idle, busy = estimates(LIMITS, PriceTable.read(""))
    assert idle.requests_per_s == pytest.approx(1 / 60 + 2 / 30)
    assert idle.currency_a_month == pytest.approx(0.648)
    assert busy.requests_per_s == pytest.approx(2 / 75 + 2 / 900 + 2 * 2 / 75)
    assert busy.currency_a_month == pytest.approx(0.72)


def test_limits_of_bytes_are_costs_of_bytes() -> None:
    limits = replace(LIMITS, upload_bytes_per_s=64 << 20, download_bytes_per_s=1 << 30)
    _, _, up, down = estimates(limits, PriceTable.parse(TABLE, path="t"))
    month_s = 30 * 24 * 3600
    assert up.requests_per_s == pytest.approx(2 + 2 / 900)
    assert up.currency_a_month == pytest.approx(((2 + 2 / 900) * 0.01 + 3 / 16) * month_s)
    assert down.requests_per_s == pytest.approx(256)
    assert down.currency_a_month == pytest.approx((256 * 0.002 + 5) * month_s)


def test_a_second_store_costs_a_write_and_a_read_for_each_object() -> None:
    limits = replace(LIMITS, upload_bytes_per_s=64 << 20, offload_object_bytes=32 << 20)
    idle, an_hour, up = offload_estimates(limits, PriceTable.parse(TABLE, path="t"))
    month_s = 30 * 24 * 3600
    assert (idle.requests_per_s, idle.currency_a_month) == (0, 0)
    assert an_hour.requests_per_s == pytest.approx(64 / 3600)
    assert an_hour.currency_a_month == pytest.approx((32 * 0.012 + 8) * 720)
    assert up.requests_per_s == pytest.approx(4)
    assert up.currency_a_month == pytest.approx((2 * 0.012 + 8 / 16) * month_s)


def test_a_forecast_adds_up_what_is_kept_tiered_merged_and_read() -> None:
    prices, mib = PriceTable.parse(TABLE, path="t"), 1 << 20
    load = Load(bytes_per_s=64 * mib, kept_s=1024.0, queues=4)  # of 16 MiB in each round: no merge
    kept, tiering, merging, reading = forecast(load, LIMITS, prices)
    assert (kept.bytes, kept.currency_a_month) == (64 << 30, 64)
    puts = 2 + 2 / 900
    assert tiering.requests_a_month == pytest.approx((puts + 1 / 60) * MONTH_S)
    wanted = (puts * 0.01 + 0.001 / 60 + 3 / 16) * MONTH_S
    assert tiering.currency_a_month == pytest.approx(wanted)
    assert merging.bytes == 64 * mib * MONTH_S, "closed segments are gathered once"
    assert merging.requests_a_month == pytest.approx((8 + 2 * 2) * MONTH_S)
    assert (reading.requests_a_month, reading.bytes) == (1 << 14, 64 << 30)
    assert reading.currency_a_month == pytest.approx((1 << 14) * 0.002 + 64 * 5)


def test_more_queues_are_more_merges_and_nothing_costs_what_an_owner_does() -> None:
    prices = PriceTable.read("")

    def merged(queues: int, bytes_per_s: float = 1e6) -> float:
        return forecast(Load(bytes_per_s, 1e6, queues), LIMITS, prices)[2].bytes / MONTH_S / 1e6

    assert [round(merged(queues)) for queues in (1, 100, 10_000)] == [1, 2, 4]
    kept, tiering, merging, reading = forecast(Load(0.0, 1e6, 1), LIMITS, prices)
    assert (kept.currency_a_month, merging.requests_a_month, reading.bytes) == (0, 0, 0)
    assert tiering.currency_a_month == estimates(LIMITS, prices)[0].currency_a_month


def test_the_command_forecasts_a_bill() -> None:
    words = ["--tier", "s3://one/place", "config", "--cost", "20MB/s", "--topics", "200"]
    shown = CliRunner().invoke(cli, [*words, "--retention", "30d"])
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0][:2] == ["19.1", "MiB/s,"]
    assert "800 queues" in shown.stdout
    assert ["kept", "47.1", "TiB", "1,110.43"] in lines
    (total,) = [float(line[-1].replace(",", "")) for line in lines if line[:2] == ["in", "all"]]
    rows = [
        json.loads(line) for line in CliRunner().invoke(cli, [*words, "--json"]).stdout.splitlines()
    ]
    assert [row["item"] for row in rows] == ["kept", "tiering", "merging", "reading it all once"]
    assert total == pytest.approx(sum(row["USD_a_month"] for row in rows[:3]), abs=0.01)
    for rate, seconds in (("1.5MiB/s", 1.5 * 2**20), ("500kB", 500_000), ("7b/s", 7)):
        given = [*words[:3], "--cost", rate, "--retention", "1h", "--json"]
        kept = json.loads(CliRunner().invoke(cli, given).stdout.splitlines()[0])
        assert kept["bytes"] == seconds * 3600
    for wrong in (["--cost", "20"], ["--cost", "0MB/s"], ["--cost", "1MB/s", "--retention", "x"]):
        assert CliRunner().invoke(cli, [*words[:3], *wrong]).exit_code == 2
    refused = CliRunner().invoke(cli, ["--tier", "here", "config", "--cost", "1MB/s"])
    assert "no requests to pay for" in refused.output
    slow = CliRunner().invoke(cli, ["-D", "objectStoreUploadRateMax=1000", *words])
    assert "tiering falls behind" in slow.stdout


def test_the_command_tells_what_each_object_store_bills(tmp_path: Path) -> None:
    def stores(*words: str) -> list[str]:
        done = CliRunner().invoke(cli, [*words, "config", "--json"])
        assert done.exit_code == 0, done.output
        rows = map(json.loads, done.stdout.splitlines())
        return [row["store"] for row in rows if row["key"] == "estimate"]

    second = ("-D", "tieredStoreOffloadPath=s3://other/place")
    assert stores("--tier", str(tmp_path)) == []
    assert set(stores("--tier", str(tmp_path), *second)) == {"second"}
    assert set(stores("--tier", "s3://one/place")) == {"first"}
    assert set(stores("--tier", "s3://one/place", *second)) == {"first", "second"}
    shown = CliRunner().invoke(cli, ["--tier", str(tmp_path), *second, "config"]).stdout
    assert "What the second store bills at these settings" in shown
    assert "What the object store bills" not in shown
    assert "offloading a GiB an hour: 0.018 requests a second, " in shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TABLE.replace("LIST = 1\n", ""), "it lacks 'LIST'"),
        (TABLE.replace("[per_gib]", "[other]"), "it lacks 'per_gib'"),
        (TABLE.replace("uploaded = 3", "uploaded = 'much'"), "could not convert"),
        (TABLE.replace("PUT = 10", "PUT = -1"), "one is negative"),
        ("name = ", "is no table of prices"),
        ("per_1000_requests = 3\nper_gib = 4\nname='n'\ncurrency='c'", "is no table of prices"),
    ],
)
def test_a_table_that_is_none_is_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    config = Config.load(defines=[f"objectStorePriceTable={file}"], environment={})
    with pytest.raises(ConfigError, match=reason) as caught:
        _ = config.prices
    assert str(file) in str(caught.value)
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = config.prices


def test_limits_of_bytes_are_configured_and_may_change_while_they_are_used() -> None:
    given = ["tieredStoreFilePath=s3://b/t", "objectStoreUploadRateMax=1000"]
    config = Config.load(defines=given, environment={})
    assert config.limits.upload_bytes_per_s == 1000
    found = config.of_broker("C", "b")
    found.limits.upload_bytes_per_s = 5
    assert config.request_limits.upload_bytes_per_s == 5
    with pytest.raises(ConfigError, match="objectStoreUploadRateMax"):
        Config.load(defines=["objectStoreUploadRateMax=-1"], environment={})
