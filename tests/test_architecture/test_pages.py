"""The pages of `docs/`: their code blocks run in order, their links lead somewhere.

The blocks of `operating.md`, `offline.md` and `spark.md` are run by tests of their own.
"""

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, run, settings
from tests.support.golden import ROCKETMQ_533, unpack, unpacked
from tests.support.patience import HANGS_AFTER_S
from tests.support.shown_blocks import BUCKET, blocks_of, environment_of, ran, runs_here

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {"operating.md", "offline.md", "spark.md"}
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)
WITH_BLOCKS = [page for page in PAGES if blocks_of(page.read_text())]
LINKED = [ROOT / "README.md", ROOT / "HACKING.md", *DOCS.glob("*.md")]
LINKED.append(ROOT / "tieredstore/decisions/README.md")


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the README's tour leaves, and a tier that RocketMQ's own store wrote."""
    directory = tmp_path_factory.mktemp("tour")
    tree = unpack(ROCKETMQ_533, "closed", directory)
    tree.tier.rename(directory / "java-tier")
    shutil.copy(ROCKETMQ_533.broker_conf, directory / "broker.conf")
    run("--conf", directory / "broker.conf", "--tier", tree.tier, "tier", tree.store)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.parametrize("page", [one for one in WITH_BLOCKS if one.name != "s3.md"], ids=str)
def test_the_blocks_of_a_page_print_what_they_show(page: Path, tour: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(tour, tmp_path / "tour")
    for block in filter(runs_here, blocks_of(page.read_text())):
        ran(block, directory, environment_of(), joined=False)


@pytest.mark.s3
@pytest.mark.timeout(HANGS_AFTER_S)
def test_the_blocks_about_s3_print_what_they_show(
    tour: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("seaweed")
    server.make_bucket(BUCKET)
    directory = shutil.copytree(tour, tmp_path / "tour")
    blocks = blocks_of((DOCS / "s3.md").read_text())
    assert len(blocks) >= 2
    for block in blocks:
        ran(block, directory, environment_of() | server.environment, joined=False)


@pytest.mark.slow
def test_the_table_of_messages_is_what_a_terminal_of_80_columns_shows(tmp_path: Path) -> None:
    text = (DOCS / "command-line.md").read_text()
    (words,) = re.findall(r"^`tieredstore (read .*)`, 80 columns wide:$", text, re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(offset  stored.*?)^```$", text, re.MULTILINE | re.DOTALL)
    tree = unpacked(ROCKETMQ_533)
    given = settings(tree, tmp_path / "tier")
    run(*given, "tier", tree.store)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    command = [*COMMAND, *given, *words.split()]
    subprocess.run(command, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    printed = os.read(ours, 65536).decode().replace("\r\n", "\n")
    os.close(ours)
    assert printed == shown


def test_every_page_is_in_the_index_and_begins_with_what_its_reader_can_do_after_it() -> None:
    index = (DOCS / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        if page.name == "README.md":
            continue
        assert f"({page.name})" in index
        title, _, first, *_ = page.read_text().splitlines()
        assert title.startswith("# ")
        assert first.startswith("After this page you "), page.name


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text())
    assert links or page.parent == DOCS
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors_of(target), f"{path}#{anchor}"
