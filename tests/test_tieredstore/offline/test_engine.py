"""Engines give the same results, whatever happens to their workers."""

import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from provider.errors import Corrupt, Unavailable
from tieredstore.cli.jobs import engine_of
from tieredstore.cli.signals import Signalled
from tieredstore.offline.jobs.engine import LocalEngine, OneProcess, Piece


@dataclass(frozen=True)
class CountWords:
    """A mapper that kills its own process the first time that it meets some words."""

    directory: Path
    deadly: tuple[str, ...] = ()
    always: bool = False

    def __call__(self, text: str) -> Iterator[Piece]:
        for number, word in enumerate(text.split()):
            mark = self.directory / word
            if word in self.deadly and (self.always or not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if word == "corrupt":
                raise Corrupt("a corrupt word", text, number)
            yield Piece(word, number, text.encode())


@dataclass(frozen=True)
class Joined:
    """A reducer that may kill its process once, too."""

    directory: Path
    deadly: str = ""

    def __call__(self, target: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
        mark = self.directory / f"reduced-{target}"
        if target == self.deadly and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        assert [piece.order for piece in pieces] == sorted(piece.order for piece in pieces)
        yield Piece(target, 0, b"|".join(sorted(piece.payload for piece in pieces)))


TEXTS = [f"a{number % 3} b{number % 5} c{number}" for number in range(40)]


@pytest.mark.slow
def test_workers_that_die_change_no_result_and_leave_no_files(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    wanted = OneProcess().map_group(TEXTS, CountWords(tmp_path), Joined(tmp_path))
    seen: list[int] = []
    with LocalEngine(2, staging=staging) as engine:
        mapper = CountWords(tmp_path, deadly=("c3", "c20", "c39"))
        found = engine.map_group(TEXTS, mapper, Joined(tmp_path, "b2"), progress=seen.append)
        assert engine.restarts >= 2
        assert engine.map_group(TEXTS[:2], mapper, Joined(tmp_path)) != []
    assert found == wanted
    assert sorted(seen) == list(range(40))
    assert list(staging.iterdir()) == []


@pytest.mark.slow
def test_a_task_that_always_dies_ends_the_job_with_one_sentence(tmp_path: Path) -> None:
    mapper = CountWords(tmp_path, deadly=("c1",), always=True)
    with (
        LocalEngine(1, staging=tmp_path) as engine,
        pytest.raises(Unavailable, match="worker processes died 3 times"),
    ):
        engine.map_group(TEXTS[1:2], mapper, Joined(tmp_path))
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.slow
def test_the_first_error_of_a_worker_is_the_jobs_and_keeps_its_place(tmp_path: Path) -> None:
    with LocalEngine(2, staging=tmp_path) as engine:
        with pytest.raises(Corrupt) as caught:
            engine.map_group([*TEXTS, "x corrupt"], CountWords(tmp_path), Joined(tmp_path))
        assert (caught.value.path, caught.value.position) == ("x corrupt", 1)
        found = engine.map_group(TEXTS, CountWords(tmp_path), Joined(tmp_path))
    assert found == OneProcess().map_group(TEXTS, CountWords(tmp_path), Joined(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_without_items_there_is_no_result(tmp_path: Path) -> None:
    for engine in (OneProcess(), LocalEngine(2)):
        assert engine.map_group([], CountWords(tmp_path), Joined(tmp_path)) == []


def ends_its_parent(number: int) -> Iterator[Piece]:
    os.kill(os.getppid(), number)
    signal.pause()
    yield Piece("", 0, b"")


@pytest.mark.slow
def test_sigterm_ends_a_job_and_its_workers_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = signal.SIGTERM
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Signalled) as ended, engine_of("local", 2) as engine:
        engine.map_group([number], ends_its_parent, Joined(tmp_path))
    assert ended.value.number == number
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) == signal.SIG_DFL
