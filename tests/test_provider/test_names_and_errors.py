"""Names, prefixes, options and verdicts."""

import errno
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider import errors
from provider.names import check_name, check_prefix
from provider.object_store import Append
from provider.options import PosixOptions
from provider.posix.files import as_verdict

VERDICTS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.StoreError)
]


@pytest.mark.parametrize(
    "name", ["a", "@journal/00", "é/日本", "a b", "...", "x" * 255, "%RETRY%g"]
)
def test_an_ordinary_name_is_kept(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["é" * 128, "/".join(["x" * 200] * 6), "a\x7f", "\x85/\x01"])
def test_a_name_that_some_storage_cannot_keep_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="object name"):
        check_name(name)


@given(st.text(max_size=20))
def test_every_beginning_of_a_name_is_a_prefix(text: str) -> None:
    try:
        check_name(text)
    except ValueError:
        return
    for end in range(len(text) + 1):
        assert check_prefix(text[:end]) == text[:end]


@given(st.text(alphabet="ab./@\\\0", max_size=12))
def test_no_name_leads_out_of_its_root(text: str) -> None:
    try:
        check_name(text)
    except ValueError:
        return
    assert not text.startswith("/")
    assert ".." not in text.split("/")


@pytest.mark.parametrize("kind", VERDICTS, ids=lambda kind: kind.__name__)
def test_a_verdict_survives_pickling_with_its_place(kind: type[errors.StoreError]) -> None:
    again = pickle.loads(pickle.dumps(kind("why", "q/0", 17)))
    assert type(again) is kind
    assert (again.reason, again.path, again.position) == ("why", "q/0", 17)
    assert str(again) == "why (q/0 at 17)"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.Unavailable),
        (errno.EDQUOT, errors.Unavailable),
        (errno.EIO, errors.Unavailable),
        (errno.EROFS, errors.Unavailable),
        (errno.ESTALE, errors.Unavailable),
        (errno.EMFILE, errors.Unavailable),
        (errno.ENOENT, errors.NotFound),
        (errno.EEXIST, errors.AlreadyExists),
        (errno.EACCES, errors.Denied),
        (errno.EPERM, errors.Denied),
        (errno.ENAMETOOLONG, errors.Denied),
    ],
)
def test_each_error_number_has_its_verdict(number: int, kind: type[errors.StoreError]) -> None:
    verdict = as_verdict(OSError(number, "x"), "q/0", 9)
    assert verdict is not None
    assert type(verdict) is kind
    assert (verdict.path, verdict.position) == ("q/0", 9)


def test_a_verdict_that_names_its_place_does_not_name_it_twice() -> None:
    assert str(errors.Unavailable("q/0 is gone", "q/0")) == "q/0 is gone"
    assert str(errors.Unavailable("gone", "")) == str(errors.Unavailable("gone", "", 7)) == "gone"


@pytest.mark.parametrize(
    ("files", "blocks", "words"),
    [
        ((100, 0), 5, "no inodes left"),
        ((100, 1), 5, "no inodes left"),  # what failed gave one back
        ((100, 9), 5, "free space"),
        ((100, 0), 0, "free space"),  # where inodes are made of space, as in XFS
        ((0, 0), 5, "free space"),  # where inodes are not counted, as in Btrfs
    ],
)
def test_what_a_full_file_system_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, files: tuple[int, int], blocks: int, words: str
) -> None:
    values = [4096, 4096, 1000, blocks, blocks, files[0], files[1], files[1], 0, 255]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    full = OSError(errno.ENOSPC, "x")
    verdict = as_verdict(full, "q/0", volume="/tier")
    assert isinstance(verdict, errors.Unavailable)
    assert words in verdict.reason
    told = as_verdict(full, "q/0")
    assert told is not None
    assert "free space" in told.reason, "nobody said which file system"


def test_an_error_that_is_likely_our_own_bug_has_none() -> None:
    assert as_verdict(OSError(errno.EBADF, "x"), "q/0") is None


def test_impossible_bounds_and_appends_are_refused() -> None:
    with pytest.raises(ValueError, match="8 files"):
        PosixOptions(files_open_max=7)
    with pytest.raises(ValueError, match="cannot append"):
        Append("f", 1, (b"x",), new=True)
    with pytest.raises(ValueError, match="cannot append"):
        Append("f", -1, (b"x",))
