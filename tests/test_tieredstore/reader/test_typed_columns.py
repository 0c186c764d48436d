"""Columns that are derived: bodies as texts, and properties as values of a type."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import tieredstore.offline
from container.record.body import CompressionType, compress
from container.record.properties import decode_properties
from tieredstore import NewMessage, sync
from tieredstore.cli.main import cli
from tieredstore.reader.arrow_columns import NAMES_IN_TABLE_MAX, Pairs, is_last_of_name, split_pairs

BODIES = [b'{"id": 1}', "é 订单".encode(), b"\xff\xfe", b"[", b"", b"NaN"]
TEXTS = ['{"id": 1}', "é 订单", None, "[", "", "NaN"]
JSON = ['{"id": 1}', None, None, None, None, None]
VALUES = ["7", "-7.25", "TRUE", "1_000", "9223372036854775808", "1234567890123456789"]
DERIVED = ["body:text", "region:string", "total:long", "total2:double", "paid:boolean"]


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    with sync.open_store(tmp_path / "store", tmp_path / "tier", broker="b") as store:
        for body, value in zip(BODIES, VALUES, strict=True):
            names: list[str] = ["region", "total", "total2", "paid"]
            named = dict.fromkeys(names, value)
            store.append("T", body, properties=named)
        packed, flag = compress(b'"packed"' * 100, CompressionType.ZLIB)
        store.put_message(NewMessage("T", 0, packed, sys_flag=flag))
    return tmp_path / "tier"


def test_bodies_are_texts_and_properties_have_types(tier: Path) -> None:
    with sync.open(tier) as opened:
        table = opened.to_arrow("T", columns=DERIVED).read_all()
        json = opened.to_arrow("T", columns=["body:json"]).read_all()
    assert table.column_names == ["body", "region", "total", "total2", "paid"]
    assert table.schema.types == [
        pa.string(), pa.string(), pa.int64(), pa.float64(), pa.bool_(),
    ]  # fmt: skip
    assert table["body"].to_pylist() == [*TEXTS, '"packed"' * 100]
    assert json["body"].to_pylist() == [*JSON, None]
    assert table["region"].to_pylist() == [*VALUES, None]
    assert table["total"].to_pylist() == [7, None, None, None, None, 1234567890123456789, None]
    assert table["total2"].to_pylist()[:4] == [7.0, -7.25, None, None]
    assert table["paid"].to_pylist() == [None, None, True, None, None, None, None]
    scanned = tieredstore.offline.dataset(tier, "T", columns=DERIVED).read_all()
    assert scanned.equals(table)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["body:xml"], "write body:text or body:json"),
        (["region:int"], "no type 'int' for the property 'region': use one of string, long"),
        (["topic:string"], "'topic' is a column of every message"),
        (["body", "body:text"], "'body' is named twice"),
        (["a:long", "a:string"], "'a' is named twice"),
        ([":string"], "there is no column ':string'"),
    ],
)
def test_a_column_that_cannot_be_derived_is_refused(
    tier: Path, columns: list[str], sentence: str
) -> None:
    with sync.open(tier) as opened, pytest.raises(ValueError, match=sentence):
        opened.to_arrow("T", columns=columns)


def export(tier: Path, directory: Path, *words: Any) -> Result:
    arguments = ["--tier", tier, "export", directory, *words]
    return CliRunner().invoke(cli, [str(word) for word in arguments], standalone_mode=False)


def test_an_export_has_typed_columns_and_keeps_them_for_later_runs(
    tier: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("--body", "text", "--property", "region:string", "--property", "total:long")
    assert export(tier, out, *words, "--columns", "queue_offset,body").exception is None
    found = ds.dataset(out, partitioning="hive").to_table().sort_by("queue_offset")
    assert found["body"].to_pylist()[:6] == TEXTS
    assert found["total"].type == pa.int64()
    assert found["region"].to_pylist() == [*VALUES, None]
    with sync.open_store(tmp_path / "store", tier, broker="b") as store:
        store.append("T", b"late", properties={"region": "eu"})
    assert export(tier, out).exception is None
    found = ds.dataset(out, partitioning="hive").to_table().sort_by("queue_offset")
    assert found.select(["body", "region"]).to_pylist()[-1] == {"body": "late", "region": "eu"}
    other = export(tier, out, "--body", "json", "--columns", "queue_offset,body")
    assert other.exit_code == 2
    begun = "was begun with columns queue_offset, body:text, region:string, total:long, not"
    assert begun in " ".join(other.output.split())


def test_all_columns_have_the_form_that_is_given(tier: Path, tmp_path: Path) -> None:
    assert export(tier, tmp_path / "out", "--body", "json").exception is None
    found = ds.dataset(tmp_path / "out", partitioning="hive").to_table().sort_by("queue_offset")
    assert found["body"].to_pylist()[0] == JSON[0]
    assert {"properties", "msg_id", "keys"} <= set(found.column_names)
    refused = export(tier, tmp_path / "o", "--body", "text", "--columns", "keys")
    assert refused.exit_code == 2
    assert "--columns names no body" in refused.output


PROPERTIES = st.one_of(
    st.binary(max_size=12),
    st.lists(
        st.sampled_from([b"\x01", b"\x02", b"A", b"B", b"KEYS", b"\xe8\xae"]), max_size=12
    ).map(b"".join),
)


def decoded(raw: bytes, pairs: Pairs, names_max: int) -> list[dict[str, str]]:
    names = [raw[a:b] for a, b in zip(pairs.name_starts, pairs.name_ends, strict=True)]
    values = [raw[a:b] for a, b in zip(pairs.value_starts, pairs.value_ends, strict=True)]
    codes = np.array([sorted(set(names)).index(name) for name in names], np.int64)
    kept = is_last_of_name(pairs, codes, max(names_max, len(set(names))))
    some = pairs.taken(kept)
    assert len(some.name_starts) == kept.sum()
    found: list[dict[str, str]] = [{} for _ in range(len(pairs.bounds) - 1)]
    for message, name, value, is_kept in zip(pairs.messages, names, values, kept, strict=True):
        if is_kept:
            found[message][name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


@given(st.lists(PROPERTIES, max_size=6), st.sampled_from([1, NAMES_IN_TABLE_MAX + 1]))
def test_many_are_split_as_each_alone(each: list[bytes], names_max: int) -> None:
    raw = b"".join(each)
    bounds = np.concatenate([[0], np.cumsum([len(one) for one in each])]).astype(np.int64)
    pairs = split_pairs(np.frombuffer(raw, np.uint8), bounds)
    assert decoded(raw, pairs, names_max) == [decode_properties(one) for one in each]
