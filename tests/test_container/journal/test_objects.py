"""Frames and names of the metadata's objects: round trips, and a verdict on any damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.errors import NewerVersion
from container.journal.frame import FRAME_FIELDS, Frame, FrameKind
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import (
    BoundaryName,
    EntryName,
    ManifestName,
    SnapshotName,
    parse_name,
)
from provider.errors import Corrupt

_u64 = st.integers(0, 2**64 - 1)
_frames = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    _u64,
    _u64,
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=64),
)
_sequences = st.integers(0, 10**20 - 1)
_epochs = st.integers(0, 10**10 - 1)
_nonces = st.binary(min_size=16, max_size=16).map(bytes.hex)
_topics = st.from_regex(r"[A-Za-z0-9_%|-]{1,20}", fullmatch=True)
_names = st.one_of(
    st.builds(EntryName, _sequences),
    st.builds(BoundaryName, _sequences),
    st.builds(SnapshotName, _sequences, _epochs, _nonces),
    st.builds(
        ManifestName,
        st.builds(QueueId, _topics, st.integers(0, 2**31 - 1)),
        st.sampled_from(SegmentType),
        st.integers(0, 40),
        _sequences,
        _epochs,
        _nonces,
    ),
)


@given(_names)
def test_a_name_is_read_back(name) -> None:
    assert parse_name(str(name)) == name


@given(_sequences, _sequences)
def test_names_sort_as_their_numbers(one: int, other: int) -> None:
    assert (str(EntryName(one)) < str(EntryName(other))) == (one < other)


@pytest.mark.parametrize(
    "name",
    [
        "@journal/1",
        "@journal/0000000000000000000a",
        "@journal/00000000000000000001.tmp",
        "@journal/00000000000000000001\n",
        "@snapshot/00000000000000000001-0000000001",
        "T/0/COMMIT_LOG/cfcd208400000000000000000000",
        "",
    ],
)
def test_a_strangers_name_is_nobodys(name: str) -> None:
    assert parse_name(name) is None


@given(_frames)
def test_a_frame_is_read_back(frame: Frame) -> None:
    assert Frame.decode(memoryview(frame.encode()), frame.kind, path="p") == frame


@given(_frames, st.data())
def test_any_flipped_bit_is_corrupt(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(frame.encode())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        Frame.decode(raw, frame.kind, path="p")


@given(_frames, st.data())
def test_any_other_length_is_corrupt(frame: Frame, data: st.DataObject) -> None:
    raw = frame.encode()
    cut = data.draw(st.integers(0, len(raw) - 1))
    for damaged in (raw[:cut], raw + b"x"):
        with pytest.raises(Corrupt):
            Frame.decode(damaged, frame.kind, path="p")


@given(st.binary(max_size=100), st.sampled_from(FrameKind))
def test_any_bytes_are_corrupt(raw: bytes, kind: FrameKind) -> None:
    with pytest.raises(Corrupt):
        Frame.decode(raw, kind, path="p")


def test_a_newer_version_is_told_from_damage() -> None:
    frame = Frame(FrameKind.ENTRY, 1, 1, bytes(16), b"{}")
    raw = frame.encode(Frame.VERSION_WITH_COPY + 1)
    with pytest.raises(NewerVersion, match="upgrade"):
        Frame.decode(raw, FrameKind.ENTRY, path="p")


def test_the_bytes_of_an_entry_stay_as_they_are() -> None:
    raw = Frame(FrameKind.ENTRY, 3, 42, bytes(range(16)), b'{"operations":[]}').encode()
    assert raw[:44].hex(" ", -4) == (
        "54534a45 00010000 00000000 00000003 00000000 0000002a"
        " 00010203 04050607 08090a0b 0c0d0e0f 00000011"
    )
    assert raw[48:] == b'{"operations":[]}'
    assert len(FRAME_FIELDS) == 8
