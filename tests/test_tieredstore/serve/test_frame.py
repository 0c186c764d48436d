"""The remoting codec: what the official client writes, every command, and any bytes."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import GOLDEN
from tests.support.level import by_level
from tests.support.remoting_client import frames_of
from tieredstore.serve.wire.frame import (
    FIELDS_MAX,
    FRAME_BYTES_MAX,
    JSON,
    LANGUAGES,
    ROCKETMQ,
    BadFrame,
    Command,
    RequestCode,
    decode,
    encode,
    frame_bytes,
)

CLIENT = GOLDEN / "remoting-5.5.0"
KINDS = {JSON: "json", ROCKETMQ: "rocketmq"}
MUTATIONS = by_level(quick=2_000, full=20_000, nightly=500_000)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def golden_frames(kind: int) -> list[bytes]:
    path: Path = CLIENT / f"{KINDS[kind]}.bin"
    found = frames_of(path.read_bytes())
    assert sum(map(len, found)) == path.stat().st_size
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_of_the_official_client_is_decoded(kind: int) -> None:
    frames = golden_frames(kind)
    found = [decode(frame) for frame in frames]
    codes = {one.code for one in found}
    assert codes >= {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.HEART_BEAT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.PULL_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UNREGISTER_CLIENT,
    }
    assert {(one.kind, one.language, one.version) for one in found} == {(kind, "JAVA", 513)}
    (pull, *_) = [one for one in found if one.code == RequestCode.PULL_MESSAGE]
    assert pull.fields["topic"] == "G_Keys"
    assert pull.fields["queueOffset"] == "0"
    assert not pull.is_one_way
    assert all(one.body.startswith(b"{") for one in found if one.code == RequestCode.HEART_BEAT)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_the_official_client_are_the_same_when_written_again(kind: int) -> None:
    for frame in golden_frames(kind):
        command = decode(frame)
        again = encode(command, len(command.body)) + command.body
        assert decode(again) == command
        if kind == ROCKETMQ:
            assert len(again) == len(frame)


@given(
    st.sampled_from([JSON, ROCKETMQ]),
    st.builds(
        Command,
        code=st.integers(-(2**15), 2**15 - 1),
        fields=st.dictionaries(TEXT, TEXT, max_size=8),
        body=st.binary(max_size=100),
        opaque=INT32,
        flag=INT32,
        remark=st.none() | TEXT.filter(bool),
        language=st.sampled_from(LANGUAGES),
    ),
)
def test_a_command_comes_back(kind: int, command: Command) -> None:
    command.kind = kind
    frame = encode(command, len(command.body)) + command.body
    assert frame_bytes(frame) == len(frame)
    assert decode(frame) == command


@given(st.binary(max_size=300))
def test_any_bytes_are_a_command_or_a_bad_frame(data: bytes) -> None:
    try:
        decode(len(data).to_bytes(4, "big") + data)
    except BadFrame:
        return


@pytest.mark.scales
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_frame_is_a_command_or_a_bad_frame(kind: int) -> None:
    frames, chance = golden_frames(kind), random.Random(kind)
    bad = 0
    for _ in range(MUTATIONS):
        frame = bytearray(chance.choice(frames))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(4, len(frame))
            if chance.random() < 0.3:
                del frame[at : at + chance.randint(1, 8)]
            else:
                frame[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        try:
            decode(bytes(frame))
        except BadFrame:
            bad += 1
    assert 0.1 * MUTATIONS < bad < MUTATIONS


@pytest.mark.parametrize("size", [-1, 0, 4, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_frame_of_an_impossible_length_is_refused_before_it_is_read(size: int) -> None:
    with pytest.raises(BadFrame, match=str(size)):
        frame_bytes(size.to_bytes(4, "big", signed=True))


def test_a_frame_that_is_cut_has_no_length_yet() -> None:
    assert frame_bytes(b"\0\0\0") is None
    assert frame_bytes(b"\0\0\0\x08") == 12


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{}",
        b'{"code":11}',
        b'{"code":true,"opaque":1}',
        b'{"code":4294967296,"opaque":1}',
        b'{"code":11,"opaque":1,"extFields":[1]}',
        b'{"code":11,"opaque":1,"extFields":{"a":{}}}',
        b'{"code":11,"opaque":1,"extFields":{%b}}'
        % b",".join(b'"%d":""' % n for n in range(FIELDS_MAX + 1)),
        b"[" * 100_000,
    ],
)
def test_a_header_of_another_form_is_refused(header: bytes) -> None:
    raw = len(header).to_bytes(4, "big") + header
    with pytest.raises(BadFrame):
        decode(len(raw).to_bytes(4, "big") + raw)


def test_values_that_are_no_texts_are_taken_as_other_clients_send_them() -> None:
    header = b'{"code":11,"opaque":1,"extFields":{"a":1,"b":true,"c":null,"d":"x"},"language":"X"}'
    raw = len(header).to_bytes(4, "big") + header
    found = decode(len(raw).to_bytes(4, "big") + raw)
    assert found.fields == {"a": "1", "b": "true", "d": "x"}
    assert found.language == "OTHER"
