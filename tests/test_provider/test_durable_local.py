"""Directories that several threads make at once, and files that stand in their way."""

from pathlib import Path

import pytest

from provider.object.files import make_directory


def test_a_directory_that_another_thread_makes_meanwhile_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, is_dir = tmp_path / "made" / "below", Path.is_dir

    def looked_at_too_early(path: Path) -> bool:
        found = is_dir(path)
        if path == wanted and not found:
            wanted.mkdir(parents=True)  # by another thread, right after the look
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", looked_at_too_early)
        make_directory(wanted)
    assert wanted.is_dir()


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match="a file stands where a directory is needed"):
            make_directory(path)
