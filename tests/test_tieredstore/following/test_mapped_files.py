"""What a touch of a mapped file brings into memory."""

import mmap
from pathlib import Path

from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.hot.log.files import resident

FILE_BYTES = 8 << 20


def test_a_touch_behind_the_end_of_a_sparse_file_reads_its_page_alone(tmp_path: Path) -> None:
    path, files = tmp_path / "sparse", MappedFiles(8, 1 << 20)
    with path.open("wb") as file:
        file.truncate(FILE_BYTES)
    view = files.view(path, reads_ahead=False)
    at = 2 << 20
    assert view[at] == 0
    with path.open("r+b") as file:
        for other in (at + mmap.PAGESIZE, at + (1 << 20), FILE_BYTES - 1):
            assert not resident(file.fileno(), other, 1), "the kernel read ahead"


def test_what_is_told_to_be_read_may_reach_beyond_the_file_and_is_needed_of_no_mapping(
    tmp_path: Path,
) -> None:
    path, files = tmp_path / "file", MappedFiles(8, 1 << 20)
    path.write_bytes(b"a" * 10_000)
    files.will_read(path, 0, 10)
    assert files.view(path, reads_ahead=False)[9_999] == ord("a")
    for position, length in ((0, 10_000), (5_000, 10_000), (9_999, 1), (20_000, 5)):
        files.will_read(path, position, length)
