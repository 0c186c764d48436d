"""The README's code blocks, run as a reader would run them: in order, in one directory."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import tieredstore
from tests.support.patience import HANGS_AFTER_S
from tests.support.shown_blocks import BUCKET, Block, blocks_of, environment_of, ran, runs_here
from tests.support.spark_settings import environment_of_programs

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LINES_MAX = 200


def environment() -> dict[str, str]:
    return {**environment_of(), "SOURCE": str(ROOT)}


def needs_more_than_python(block: Block) -> bool:
    return BUCKET in block.text or "pyspark" in block.text


@pytest.fixture(scope="module")
def blocks_run(tmp_path_factory: pytest.TempPathFactory) -> list[Block]:
    """The blocks that need Python alone, in order; each printed what the page shows.

    Shared, for it costs some 3 s of CPU time: a run of the first page belongs to `make test`.
    """
    directory = tmp_path_factory.mktemp("readme")
    blocks = [one for one in blocks_of(README.read_text()) if not needs_more_than_python(one)]
    found = list(filter(runs_here, blocks))
    for block in found:
        ran(block, directory, environment(), joined=False)
    return found


@pytest.mark.timeout(HANGS_AFTER_S)
def test_the_blocks_that_need_python_alone_print_what_they_show(blocks_run: list[Block]) -> None:
    assert sum(block.language == "bash" for block in blocks_run) >= 2
    assert all(block.shown for block in blocks_run)


@pytest.mark.s3
@pytest.mark.timeout(HANGS_AFTER_S)
def test_all_blocks_run_in_order_and_print_what_they_show(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    given = environment()
    if find_spec("pyspark"):
        given |= environment_of_programs(tmp_path_factory.mktemp("spark"))
    blocks = blocks_of(README.read_text())
    assert sum(map(needs_more_than_python, blocks)) >= 2
    assert sum(bool(block.shown) for block in blocks) >= 5
    for block in filter(runs_here, blocks):
        if BUCKET in block.text:
            server = request.getfixturevalue("seaweed")
            server.make_bucket(BUCKET)
            given |= server.environment
        ran(block, tmp_path, given, joined=False)


def test_the_first_page_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LINES_MAX


def test_the_tree_of_folders_is_the_one_that_is_there() -> None:
    """Every folder that the page names exists, and every package and room is named."""
    block = (ROOT / "docs/architecture.md").read_text().split("```")[1]
    named: set[str] = set()
    parent = ""
    for line in block.splitlines():
        if not line.strip():
            continue
        name = line.split()[0]
        parent = name if not line.startswith(" ") else parent
        named.add(name if name == parent else f"{parent}{name}")
    root = Path(str(tieredstore.__file__)).parents[1]
    rooms = {
        f"{path.parent.relative_to(root)}/"
        for package in ("tieredstore", "dispatcher", "fetcher", "container", "provider")
        for path in (root / package).glob("**/__init__.py")
        if len(path.relative_to(root).parts) <= 3
    }
    assert rooms <= named
    absent = [name for name in named if not any((top / name).is_dir() for top in (root, ROOT))]
    assert absent == []
