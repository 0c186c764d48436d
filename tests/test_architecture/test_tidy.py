"""House rules, checked: a rule that nothing checks is a wish."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import sizes

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for name in sizes.PACKAGES for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for name in ("docs", *sizes.PACKAGES) for path in (ROOT / name).rglob("*.md")),
]
DUMPS = {"utils", "util", "common", "helpers", "misc"}
ASKS_PATHLIB = re.compile(r"(?<!\bentry)(?<!\babove)\.(exists|is_dir|is_file)\(")
"""From Python 3.14 on these say False for any error; an entry of a listing still raises."""
NO_START = re.compile(
    r"(what|who|whom|whose|which|how|where|when|that|one|those|nobody|somebody|whoever|says)\b",
    re.IGNORECASE,
)
"""A docstring starts with a noun phrase or an imperative verb."""
NO_WORD = re.compile(
    r"\b(nobody|somebody|whoever|no one|anew|such a one|that which|by what|"
    r"(is|are|was|were|be|been) told|stands? for|"
    r"lets?\b[^.]{0,40}\bbe)\b",
    re.IGNORECASE,
)
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "directory", [*sizes.PACKAGES, *sorted({name_of(path.parent) for path in TESTS})]
)
def test_files_are_tidy(directory: str) -> None:
    if directory in sizes.PACKAGES:
        paths = [path for path in SOURCES if name_of(path).startswith(f"{directory}/")]
    else:
        paths = [path for path in TESTS if name_of(path.parent) == directory]
    assert paths
    assert [f"{name_of(path)}: {fault}" for path in paths for fault in faults_of(path)] == []


def faults_of(path: Path) -> Iterator[str]:
    """What is wrong with a file; nothing of it is a matter of size, but for functions."""
    text = path.read_text()
    tree = ast.parse(text)
    if path.stem in DUMPS:
        yield "name the room after what is in it"
    if path.stem.endswith(("_v2", "2")):
        yield "replace the old one instead"
    if not ast.get_docstring(tree):
        yield "say in one sentence what this file is for"
    yield from (f"{word}: finish it or leave it out" for word in UNFINISHED if word in text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > sizes.FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines"


@pytest.mark.parametrize("package", sizes.PACKAGES)
def test_prose_uses_standard_terms(package: str) -> None:
    paths = [path for path in SOURCES if name_of(path).startswith(f"{package}/")]
    assert paths
    assert [f"{name_of(path)}:{fault}" for path in paths for fault in faults_of_prose(path)] == []


def test_each_fault_of_prose_is_found(tmp_path: Path) -> None:
    path = tmp_path / "prose.py"
    path.write_text(
        '"""Whether it runs."""\n\nA = 1\n"""What A is."""\nB = "nobody"  # somebody\'s\n\n\n'
        'def is_it() -> bool:\n    """Whether it is; the caller is\n    told.\n    """\n'
    )
    assert list(faults_of_prose(path)) == [
        "1: starts with 'Whether', and is no predicate",
        "4: starts with 'What'",
        "5: has 'nobody'",
        "9: has 'is told'",
        "5: has 'somebody'",
    ]


def test_documents_use_standard_terms() -> None:
    assert DOCUMENTS
    assert [
        f"{name_of(path)}:{number}: has {found[0]!r}"
        for path in DOCUMENTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for found in NO_WORD.finditer(line)
    ] == []


def faults_of_prose(path: Path) -> Iterator[str]:
    """Refused words of docstrings and of other texts, then those of comments."""
    text = path.read_text()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found = NO_START.match(" ".join(str(node.value.value).split()))
            if found is not None:
                yield f"{node.lineno}: starts with {found[0]!r}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from faults_of_text(node.lineno, " ".join(node.value.split()))
        if isinstance(node, ast.Module | ast.ClassDef):
            doc = ast.get_docstring(node) or ""
            if doc.startswith("Whether"):
                yield f"{node.body[0].lineno}: starts with 'Whether', and is no predicate"
    if NO_WORD.search(text):  # tokens cost more than the tree
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield from faults_of_text(token.start[0], token.string)


def faults_of_text(line: int, text: str) -> Iterator[str]:
    yield from (f"{line}: has {found[0]!r}" for found in NO_WORD.finditer(text))


def test_what_is_large_is_a_list_of_warnings(tmp_path: Path) -> None:
    room = tmp_path / "provider/room"
    room.mkdir(parents=True)
    for number in range(sizes.ROOM_FILES_MAX + 1):
        (room / f"m{number}.py").write_text("class Piece: ...\n" if number < 2 else "")
    assert list(sizes.warnings(tmp_path)) == [
        "provider/room: 16 files, over 15",
        "provider: classes of one name: Piece x2",
    ]
    long = tmp_path / "provider/long.py"
    long.write_text("def f():\n" + "    x = 1\n" * sizes.FILE_LINES_MAX)
    assert list(sizes.warnings(tmp_path))[:2] == [
        "provider/long.py: 701 lines, over 700",
        "provider/long.py: f: 701 lines, over 70",
    ]


def test_no_error_of_a_file_system_counts_as_absence() -> None:
    """It is asked of provider.names."""
    found = [
        f"{name_of(path)}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text().splitlines()
        if ASKS_PATHLIB.search(line) and "noqa: PTH" not in line
    ]
    assert found == []


def test_every_file_is_imported_by_another() -> None:
    lines = (line for path in SOURCES for line in path.read_text().splitlines())
    imports = "\n".join(line for line in lines if "import" in line or '"' in line)
    assert [name_of(path) for path in SOURCES if not is_imported(path, imports)] == []


def is_imported(path: Path, imports: str) -> bool:
    if path.name in {"__init__.py", "__main__.py", "main.py"} or "testing" in path.parts:
        return True
    module = name_of(path).removesuffix(".py").replace("/", ".")
    parent, leaf = module.rsplit(".", 1)
    wanted = (
        f"from {module} import",
        f"import {module}",
        f"from {parent} import {leaf}",
        f'"{module}',
    )
    return any(word in imports for word in wanted)


def test_no_path_of_somebodys_machine_is_committed() -> None:
    tracked = subprocess.run(
        [
            "git",
            "grep",
            "-nIE",
            r"[/](home/[a-z]|root/|Users/|work/)",
            "--",
            ".",
            ":!tests/golden",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in tracked.stdout.splitlines() if "test_tidy.py" not in line]
    assert lines == []


def test_every_decision_has_a_number_of_its_own() -> None:
    paths = sorted((ROOT / "tieredstore/decisions").glob("[0-9]*.md"))
    numbers = [path.name[:4] for path in paths]
    assert numbers == [f"{number:04}" for number in range(1, len(paths) + 1)]
    for path, number in zip(paths, numbers, strict=True):
        assert path.read_text().startswith(f"# {number}: ")
