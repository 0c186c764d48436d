"""The pictures of `docs/architecture.md`: rooms and their imports, and the way of a datum."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.sizes import PACKAGES

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
DRAWN = re.findall(r"^```mermaid\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SINGLE = {"dispatcher", "fetcher"}
"""Packages of one room."""

BEHIND_IMPORTS = re.compile(r"^(?:@|class |def |async def )", re.MULTILINE)
Arrows = dict[str, set[str]]


def room_of(path: Path) -> str | None:
    """The room of a product file, by its short name; None for a loose module of a package."""
    if path.parts[0] in SINGLE:
        return path.parts[0]
    return path.parts[1] if len(path.parts) > 2 else None


def imports_of_rooms() -> Arrows:
    """Imports between rooms. Those inside functions do not count."""
    paths = [path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    modules = {".".join(path.with_suffix("").parts): path for path in paths}
    found: Arrows = defaultdict(set)
    for path in paths:
        room = room_of(path)
        imports, *_ = BEHIND_IMPORTS.split((ROOT / path).read_text(), 1)
        for node in ast.parse(imports).body:
            if room is None or not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            named = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
            named += [f"{name}.__init__" for name in named]
            rooms = {room_of(modules[name]) for name in named if name in modules}
            found[room] |= {one for one in rooms if one is not None} - {room}
    return found


def reachable(arrows: Arrows, start: str) -> set[str]:
    """Rooms that follow from `start` by one arrow or more."""
    seen: set[str] = set()
    waiting = set(arrows.get(start, ()))
    while waiting:
        one = waiting.pop()
        seen.add(one)
        waiting |= arrows.get(one, set()) - seen
    return seen


def arrows_of(drawing: str) -> Arrows:
    drawn: Arrows = defaultdict(set)
    for start, ends in re.findall(r"^ +(\w+) --> ([\w &]+)$", drawing, re.MULTILINE):
        drawn[start] |= set(ends.split(" & "))
    return drawn


def test_the_picture_of_rooms_is_that_of_the_imports() -> None:
    """An import that follows from two arrows has no arrow of its own."""
    drawn, imported = arrows_of(DRAWN[0]), imports_of_rooms()
    assert not [room for room in imported if room in reachable(imported, room)], "a circle"
    needed = {
        (start, end)
        for start, ends in imported.items()
        for end in ends
        if not any(end in reachable(imported, other) for other in ends)
    }
    assert {(start, end) for start, ends in drawn.items() for end in ends} == needed
    named = set(re.findall(r"\w+", "".join(re.findall(r"^ +[\w; ]+$", DRAWN[0], re.MULTILINE))))
    assert set(imported) <= named


@pytest.mark.slow
@pytest.mark.process
def test_the_pictures_of_the_ways_name_files_that_a_datum_passes() -> None:
    """In a process of its own: calls in threads that earlier tests left are not seen."""
    words = [sys.executable, "-m", "tests.support.data_paths", "--list"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    ways = re.split(r"^\w.*\n", listed, flags=re.MULTILINE)[1:]
    for drawing, way in zip(DRAWN[1:], ways, strict=True):
        drawn = set(re.findall(r"\[([\w/.]+\.py)\]", drawing))
        assert len(drawn) >= 6, drawing
        assert drawn <= set(way.split()), drawing
