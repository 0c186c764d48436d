"""`tieredstore doctor` names what is wrong with a place, and leaves nothing there."""

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provider.stores.verified import DELETABLE
from tests.support.odd_s3 import OddS3, Refusal
from tieredstore.cli.main import cli
from tieredstore.diagnosis.directory import Grade
from tieredstore.diagnosis.s3 import (
    judge_clock,
    judge_lock,
    judge_region,
    judge_rules,
    judge_uploads,
    judge_versioning,
)

RULE = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}}
EXPIRES = {**RULE, "Expiration": {"Days": 3}}
BY_NIGHT = pytest.mark.nightly
"""Another one like it is met by day."""
CLEANS = {**RULE, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def bad_lines(result: Result) -> dict[str, str]:
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows, result.output
    return {row["check"]: row["detail"] + row["advice"] for row in rows if row["grade"] == "bad"}


def _refused(status: int, code: str) -> dict[str, Any]:
    return {"refusals": [Refusal(status=status, code=code)]}


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def diagnose(status: int, **oddities: Any) -> dict[str, str]:
        with OddS3(**oddities) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            result = invoke("doctor", "s3://odd/t", "--json")
            assert result.exit_code == status, result.output
            left = [name for names in server.objects.values() for name in names]
            assert [name for name in left if not name.endswith(DELETABLE)] == []
            return bad_lines(result) if status != 3 else {"": result.stderr}

    return diagnose


@pytest.mark.slow
@pytest.mark.parametrize(
    ("oddity", "bad", "told"),
    [
        ({}, (), ""),
        pytest.param({"race_s": 0.03}, ("conditional writes",), "create-if-absent", marks=BY_NIGHT),
        ({"ignores_condition": True}, ("conditional writes",), "create-if-absent"),
        ({"undeletable": "."}, ("delete",), "s3:DeleteObject"),
        pytest.param({"clock_skew_s": 900.0}, ("clock",), "NTP", marks=BY_NIGHT),
        ({"refusals": [Refusal(status=403, code="AccessDenied", methods="PUT")]}, ("create", "read",
         "size"), "s3:PutObject"),
        (
            {"configurations": {"versioning": "<V><Status>Enabled</Status></V>"}},
            ("versioning",),
            "noncurrent",
        ),
    ],
    ids=["none", "race", "condition", "undeletable", "clock", "denied", "versioning"],
)  # fmt: skip
def test_each_oddity_of_a_bucket_is_a_bad_line(
    diagnosed: Any, oddity: dict[str, Any], bad: tuple[str, ...], told: str
) -> None:
    found = diagnosed(1 if bad else 0, **oddity)
    assert set(found) == set(bad)
    assert told in " ".join(found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("oddity", "bad", "told"),
    [
        ({"buckets": ("another",)}, "bucket", "there is no bucket odd"),
        ({"keys": ("another",)}, "credentials", "no such access key"),
        pytest.param(
            *(_refused(403, "SignatureDoesNotMatch"), "credentials", "AWS_SECRET_ACCESS_KEY"),
            marks=BY_NIGHT,
        ),
        pytest.param(_refused(400, "ExpiredToken"), "credentials", "renew it", marks=BY_NIGHT),
        (_refused(403, "RequestTimeTooSkewed"), "credentials", "NTP"),
    ],
    ids=["bucket", "key", "secret", "token", "clock"],
)
def test_what_leaves_nothing_else_to_diagnose_is_one_line_and_nothing_is_written(
    diagnosed: Any, oddity: dict[str, Any], bad: str, told: str
) -> None:
    found = diagnosed(1, **oddity)
    assert set(found) == {bad}
    assert told in found[bad]


@pytest.mark.slow
def test_a_port_without_tls_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with OddS3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint.replace("http:", "https:"))
        result = invoke("doctor", "s3://odd/t", "--json")
    assert result.exit_code == 1, result.output
    assert {check: "without TLS" in told for check, told in bad_lines(result).items()} == {
        "endpoint": True
    }


@pytest.mark.slow
def test_a_service_that_is_away_ends_with_3(diagnosed: Any) -> None:
    assert "503" in diagnosed(3, refusals=[Refusal(status=503, code="SlowDown")])[""]


def test_a_directory_is_diagnosed_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"x")
    result = invoke("doctor", tmp_path, "--json")
    assert set(bad_lines(result)) <= {"free space", "inodes", "file system"}
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]
    absent = invoke("doctor", tmp_path / "absent", "--json")
    assert absent.exit_code == 1
    assert "directory" in bad_lines(absent)
    assert not (tmp_path / "absent").exists()
    file = invoke("doctor", tmp_path / "kept", "--json")
    assert "is a file" in bad_lines(file)["directory"]


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EROFS, "for writing"),
        (errno.EACCES, "run as its owner"),
        (errno.ENOSPC, "free space"),
    ],
)
def test_a_directory_that_takes_no_file_says_what_to_do(
    tmp_path: Path, number: int, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tieredstore.diagnosis.directory.tempfile.mkdtemp", refused)
    result = invoke("doctor", tmp_path, "--json")
    assert result.exit_code == 1
    assert cure in bad_lines(result)["create files"]


def test_rules_that_delete_or_archive_are_bad_where_they_concern_the_prefix() -> None:
    for begins in ("", "tier", "tier/a", "tier/a/below"):
        rule = {**EXPIRES, "Filter": {"Prefix": begins}}
        assert judge_rules([rule], "tier/a")[0].grade is Grade.BAD, begins
    for rule in (
        {**EXPIRES, "Filter": {"Prefix": "other"}},
        {**EXPIRES, "Status": "Disabled"},
        {**EXPIRES, "Filter": {"Tag": {"Key": "k", "Value": "v"}}},
        {**RULE, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {**RULE, "Transitions": [{"Days": 30, "StorageClass": "STANDARD_IA"}]},
        CLEANS,
    ):
        assert judge_rules([rule], "tier/a")[0].grade is Grade.GOOD, rule
    archives = {**RULE, "Transitions": [{"Days": 30, "StorageClass": "DEEP_ARCHIVE"}]}
    assert "DEEP_ARCHIVE" in judge_rules([archives], "tier")[0].detail
    assert judge_rules("AccessDenied", "tier")[0].grade is Grade.NOTE


def test_versions_are_good_where_a_rule_expires_them() -> None:
    assert judge_versioning({}, [], "t").grade is Grade.GOOD
    assert judge_versioning({"Status": "Enabled"}, [], "t").grade is Grade.BAD
    assert judge_versioning({"Status": "Suspended"}, [EXPIRES], "t").grade is Grade.BAD
    assert judge_versioning({"Status": "Enabled"}, [CLEANS], "t").grade is Grade.GOOD
    assert judge_versioning("AccessDenied", [], "t").grade is Grade.NOTE


def test_locks_uploads_region_and_clock_are_judged() -> None:
    on = {"ObjectLockEnabled": "Enabled"}
    assert judge_lock({}).grade is Grade.GOOD
    assert judge_lock({"ObjectLockConfiguration": on}).grade is Grade.NOTE
    held = {**on, "Rule": {"DefaultRetention": {"Days": 1}}}
    assert judge_lock({"ObjectLockConfiguration": held}).grade is Grade.BAD
    aborts = {**RULE, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
    assert judge_uploads({}, [], "t").grade is Grade.GOOD
    assert judge_uploads({"Uploads": [{}]}, [], "t").grade is Grade.NOTE
    assert judge_uploads({"Uploads": [{}]}, [aborts], "t").grade is Grade.GOOD
    assert judge_region("eu-west-3", "us-east-1").grade is Grade.BAD
    assert judge_region("", "us-east-1").grade is Grade.GOOD
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    assert judge_clock("Thu, 01 Jan 2026 12:00:30 GMT", now).grade is Grade.GOOD
    assert judge_clock("Thu, 01 Jan 2026 12:05:00 GMT", now).grade is Grade.BAD
    assert judge_clock("", now).grade is Grade.NOTE
