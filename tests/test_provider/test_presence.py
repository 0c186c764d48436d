"""An error is never taken for "nothing is there", whatever Python thinks of it."""

import errno
import os
from pathlib import Path

import pytest

from provider.names import is_directory, is_regular_file, is_there

ASKED = [is_there, is_directory, is_regular_file]


def test_what_is_there_is_told_over_links(tmp_path: Path) -> None:
    file, link, fifo = tmp_path / "file", tmp_path / "link", tmp_path / "fifo"
    file.touch()
    link.symlink_to(tmp_path)
    os.mkfifo(fifo)
    told = {path.name: [ask(path) for ask in ASKED] for path in (tmp_path, file, link, fifo)}
    assert told == {
        tmp_path.name: [True, True, False],
        "file": [True, False, True],
        "link": [True, True, False],
        "fifo": [True, False, False],
    }


@pytest.mark.parametrize("ask", ASKED)
def test_nothing_is_at_a_path_that_leads_nowhere(ask: object, tmp_path: Path) -> None:
    assert callable(ask)
    file, loop, dangling = tmp_path / "file", tmp_path / "loop", tmp_path / "dangling"
    file.touch()
    loop.symlink_to(loop)
    dangling.symlink_to(tmp_path / "none")
    for path in (tmp_path / "none", file / "below", loop, dangling, Path("a\0b")):
        assert not ask(path)


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG])
def test_what_cannot_be_told_is_an_error(
    ask: object, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(ask)

    def fails(path: object, **more: object) -> object:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("provider.names.os.stat", fails)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        ask(tmp_path)
    assert caught.value.errno == number
