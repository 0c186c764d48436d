"""Codes and fields that `serve` reads and writes, beside those of RocketMQ's own headers.

A Java program lists the headers of the official client by reflection. Each request is sent once,
with all fields that its header has. What the server asks of it, and the fields of its answer, are
compared with that header.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.lacking import lacks
from tests.support.patience import HANGS_AFTER_S, completed
from tests.support.rocketmq_broker import BrokerInstall, JavaMissing
from tests.support.served_tier import asked
from tieredstore.serve.wire.frame import RequestCode, ResponseCode
from tieredstore.serve.wire.request import Request

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

NEWEST = "5.5.0"
"""Its headers name the codes of their requests; older ones have the same names."""
NUMBERS, FLAGS = {"int", "long", "Integer", "Long"}, {"boolean", "Boolean"}
HEADER_OF: dict[int, str] = {RequestCode.LITE_PULL_MESSAGE: "PullMessageRequestHeader"}
"""Requests that no header names."""
NEWER = {
    "4.9.8": {
        "GET_SUBSCRIPTIONGROUP_CONFIG",
        "GET_TOPIC_CONFIG",
        "INVALID_PARAMETER",
        "LITE_PULL_MESSAGE",
        "QUERY_SUBSCRIPTION_BY_CONSUMER",
        "QUERY_TOPICS_BY_CONSUMER",
        "REGISTER_TOPIC_IN_NAMESRV",
    },
    "5.1.4": {"INVALID_PARAMETER"},
}
"""Codes that an older version lacks."""
NO_FIELD = {(RequestCode.QUERY_MESSAGE, "_UNIQUE_KEY_QUERY")}
"""What clients put among the fields beside the header."""
NEEDED = {
    (RequestCode.QUERY_CONSUME_QUEUE, "topic"),
    (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, "topic"),
}
"""Fields without which a Java broker fails, too, though its header does not say so."""


class HeaderField(NamedTuple):
    """Field of a Java header."""

    java_type: str
    is_always_sent: bool

    def is_of_kind(self, kind: str) -> bool:
        is_number, is_flag = self.java_type in NUMBERS, self.java_type in FLAGS
        return {"number": is_number, "flag": is_flag}.get(kind, not is_number and not is_flag)


class Contract(NamedTuple):
    """What one version of the official client says."""

    codes: Mapping[str, Mapping[str, int]]
    """By enumeration and name."""
    headers: Mapping[str, Mapping[str, HeaderField]]
    header_of: Mapping[int, str]
    """Name of the request header by request code, where the version says it."""

    def request_fields(self, code: int) -> Mapping[str, HeaderField]:
        return self.headers.get(self.header_of.get(code, ""), {})

    def answer_fields(self, code: int) -> Mapping[str, HeaderField]:
        return self.headers.get(self.header_of.get(code, "").replace("Request", "Response"), {})


def contract_of(version: str, home: Path) -> Contract:
    try:
        client = BrokerInstall.fetched_client(version)
    except JavaMissing as missing:
        lacks(str(missing))
    jars = [str(one) for one in client.library.glob("rocketmq-*.jar")]
    done = completed(client.java("Headers", *jars, home=home, heap_mib=64))
    assert done.returncode == 0, done.stderr
    codes, headers = defaultdict[str, dict[str, int]](dict), dict[str, dict[str, HeaderField]]()
    header_of = HEADER_OF.copy()
    for line in done.stdout.splitlines():
        match line.split("\t"):
            case ["header", name, code]:
                headers[name] = {}
                if code and name.endswith("RequestHeader"):
                    header_of[int(code)] = name
            case ["field", header, name, kind, always]:
                headers[header].setdefault(name, HeaderField(kind, always == "true"))
            case [enumeration, name, code]:
                codes[enumeration][name] = int(code)
            case _:
                raise AssertionError(line)
    return Contract(codes, headers, header_of)


class Asked(NamedTuple):
    """One field that the server reads of a request."""

    code: int
    name: str
    kind: str
    is_needed: bool


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return contract_of(NEWEST, tmp_path_factory.mktemp("home"))


@pytest.fixture(
    scope="module",
    params=[
        NEWEST,
        "4.9.8",
        pytest.param("5.3.3", marks=pytest.mark.nightly),
        pytest.param("5.1.4", marks=pytest.mark.nightly),
    ],
)
def theirs(
    request: pytest.FixtureRequest, newest: Contract, tmp_path_factory: pytest.TempPathFactory
) -> Contract:
    if request.param == NEWEST:
        return newest
    found = contract_of(request.param, tmp_path_factory.mktemp("home"))
    return found._replace(header_of=newest.header_of)


def test_codes_are_those_of_java(theirs: Contract, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["theirs"]
    for ours in (RequestCode, ResponseCode):
        known = theirs.codes[ours.__name__]
        named = {one.name: one.value for one in ours if one.name != "TIER_RANGES"}
        assert {name for name in named if name not in known} == NEWER.get(version, set()) & {*named}
        assert {name: known[name] for name in named if name in known} == {
            name: code for name, code in named.items() if name in known
        }


def value_of(name: str, field: HeaderField) -> str:
    if field.java_type in NUMBERS:
        return {"maxMsgNums": "1", "maxNum": "1", "sysFlag": "4", "subVersion": "0"}.get(name, "0")
    if field.java_type in FLAGS:
        return "true"
    return {"boundaryType": "UPPER", "expressionType": "TAG", "subscription": "*", "bname": ""}.get(
        name, "G_Keys"
    )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[Asked]:
    """The fields that servers of this process read."""
    found = set[Asked]()

    def recorded(method: str, kind: str) -> Callable[..., Any]:
        plain = getattr(Request, method)

        def reading(self: Request, name: str, *default: Any, **named: Any) -> Any:
            is_needed = method != "optional" and not default and not named
            if (self.command.code, name) not in {one[:2] for one in found}:
                found.add(Asked(self.command.code, name, kind, is_needed))
            return plain(self, name, *default, **named)

        return reading

    kinds = {"text": "text", "optional": "text", "number": "number", "is_set": "flag"}
    for method, kind in kinds.items():
        monkeypatch.setattr(Request, method, recorded(method, kind))
    return found


async def test_fields_are_those_of_java(
    theirs: Contract, newest: Contract, golden_tier: Path, tmp_path: Path, read: set[Asked]
) -> None:
    """A field that the server needs is sent by each version; no other is unknown to the newest."""
    answers: dict[int, Mapping[str, str]] = {}
    async with asked(golden_tier, tmp_path) as client:
        await client.beat("a", "G_Keys", "G_Keys")
        for code in (one for one in RequestCode if one.name in theirs.codes["RequestCode"]):
            fields = theirs.request_fields(code)
            sent: dict[str, Any] = {name: value_of(name, field) for name, field in fields.items()}
            answer = await client.ask(code, **sent)
            assert "lacks the field" not in (answer.remark or ""), (code, answer.remark)
            if answer.code == ResponseCode.SUCCESS:
                answers[code] = answer.fields
    assert min(len(read), len(answers)) > 20
    for one in read:
        if (one.code, one.name) not in NO_FIELD:
            version = theirs if one.is_needed else newest
            field = version.request_fields(one.code).get(one.name)
            assert field is not None, one
            assert field.is_of_kind(one.kind), (one, field)
            assert not one.is_needed or field.is_always_sent or one[:2] in NEEDED, (one, field)
    for code, given in answers.items():
        fields = theirs.answer_fields(code)
        needed = {name for name, field in fields.items() if field.is_always_sent}
        assert needed <= given.keys(), code
        assert not fields or given.keys() <= newest.answer_fields(code).keys(), code
