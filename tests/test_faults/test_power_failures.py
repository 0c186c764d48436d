"""Power failures under the real store on a directory: what `disk_model` says a disk may hold then.

By day some hundred states; thousands in `make test-nightly`. The harness must find what
is wrong with a provider that leaves out, or takes for granted, any one sync.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from provider.posix import directories, files, store
from tests.support.level import by_level
from tests.support.power_run import GOES_ON_EVERY, Violation, record

RUNS = by_level(quick=4, full=4, nightly=200)
STATES = 50
"""Power failures that are judged in one run."""
MUTANT_RUNS_MAX = 12


@pytest.fixture
def nothing_blocks_the_loop() -> None:
    """Calls block here: the loop's time is simulated, and the store has no threads."""


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_power_failure_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    run = record(seed, tmp_path / "run")
    counts = run.judge(STATES, tmp_path)
    assert counts["states"] == STATES
    assert counts["went on"] >= STATES // GOES_ON_EVERY
    assert counts["tiers"] > STATES // 2
    assert counts["acknowledged"] > 10 * STATES, f"the run does too little: {counts}"
    assert run.struck.total() > 5, f"hardly any call failed: {run.struck}"


def test_a_power_failure_of_a_short_run_loses_nothing_acknowledged(tmp_path: Path) -> None:
    assert record(1_000, tmp_path / "run").judge(12, tmp_path)["states"] == 12


@dataclass(frozen=True)
class Mutant:
    """A provider with one mistake: `old` of a module's source is `new`, in one of its names."""

    module: ModuleType
    name: str
    """What is taken from the changed module, `Class.method` or a function."""
    used_by: ModuleType
    old: str
    new: str

    @contextmanager
    def installed(self) -> Iterator[None]:
        source = inspect.getsource(self.module)
        assert source.count(self.old) == 1, "the source has changed: change the mutant"
        changed = ModuleType(self.module.__name__)
        exec(compile(source.replace(self.old, self.new), self.name, "exec"), changed.__dict__)
        owner, _, leaf = self.name.rpartition(".")
        target = getattr(self.used_by, owner) if owner else self.used_by
        wrong = getattr(getattr(changed, owner) if owner else changed, leaf)
        with patch.object(target, leaf, wrong):
            yield


MUTANTS = {
    "directories-are-not-synced": Mutant(
        files,
        "sync_directory",
        directories,
        "            os.fsync(fd)\n        except OSError as error:\n",
        "            os.fstat(fd)\n        except OSError as error:\n",
    ),
    "new-directories-are-not-synced": Mutant(
        directories,
        "Directories.unsynced",
        directories,
        "        return sorted({_parent(path) for path in placed if path != self.root})\n",
        "        return []\n",
    ),
    "a-failed-sync-of-directories-is-not-made-again": Mutant(
        store,
        "AppendRounds._sync_directories",
        store,
        "        self._in_parallel(sync, sorted(folders))\n"
        "        self._directories.settle(placed)\n",
        "        self._directories.settle(placed)\n"
        "        self._in_parallel(sync, sorted(folders))\n",
    ),
    "data-is-not-synced": Mutant(
        store,
        "_sync",
        store,
        "            sync_data(fd)\n",
        "            os.fstat(fd)\n",
    ),
    "a-failed-sync-is-made-again": Mutant(
        store,
        "_sync",
        store,
        "            sync_data(fd)\n",
        "            try:\n"
        "                sync_data(fd)\n"
        "            except OSError:\n"
        "                sync_data(fd)\n",
    ),
    "a-failed-sync-is-ignored": Mutant(
        store,
        "_sync",
        store,
        "            sync_data(fd)\n",
        "            with suppress(OSError):\n                sync_data(fd)\n",
    ),
    "an-object-has-its-name-before-it-is-synced": Mutant(
        store,
        "PosixWork._create",
        store,
        "                    os.fsync(fd)\n"
        "                finally:\n"
        "                    os.close(fd)\n"
        "                os.link(temporary, path)\n",
        "                    os.link(temporary, path)\n"
        "                    os.fsync(fd)\n"
        "                finally:\n"
        "                    os.close(fd)\n",
    ),
    "an-object-is-not-synced": Mutant(
        store,
        "PosixWork._create",
        store,
        "                    os.fsync(fd)\n",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_provider_with_a_mistake_is_found_out(tmp_path: Path, name: str) -> None:
    def judge_runs() -> None:
        for seed in range(MUTANT_RUNS_MAX):
            with MUTANTS[name].installed():
                run = record(seed, tmp_path / f"run-{seed}")
            run.judge(STATES, tmp_path)

    with pytest.raises(Violation):
        judge_runs()
