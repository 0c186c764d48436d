"""Prints what has grown past the house's sizes: `python -m tests.support.sizes` in the checkout.

They are warnings for the eye, for a file that is cut to please a number is worse than a long one.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("tieredstore", "dispatcher", "fetcher", "container", "provider")
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
ROOM_FILES_MAX = 15
ROOMS_MAX = 12
LOOSE_MODULES_MAX = 8
"""Modules of a package that are in none of its rooms."""


def warnings(root: Path) -> Iterator[str]:
    """A line for each file, function, room and package that is larger, and each name used twice."""
    for package in PACKAGES:
        files = sorted((root / package).rglob("*.py"))
        classes: Counter[str] = Counter()
        for path in files:
            text, name = path.read_text(), path.relative_to(root)
            yield from over(f"{name}", len(text.splitlines()), "lines", FILE_LINES_MAX)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    yield from over(f"{name}: {node.name}", lines, "lines", FUNCTION_LINES_MAX)
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name] += 1
        yield from _rooms(root, package, files)
        twice = [f"{name} x{count}" for name, count in sorted(classes.items()) if count > 1]
        if twice:
            yield f"{package}: classes of one name: {', '.join(twice)}"


def over(what: str, size: int, unit: str, most: int) -> Iterator[str]:
    """A line, if it is over."""
    if size > most:
        yield f"{what}: {size} {unit}, over {most}"


def _rooms(root: Path, package: str, files: list[Path]) -> Iterator[str]:
    modules = Counter(path.parent for path in files if path.name != "__init__.py")
    top = root / package
    for room, count in sorted(modules.items()):
        if room != top:
            yield from over(f"{room.relative_to(root)}", count, "files", ROOM_FILES_MAX)
    yield from over(package, sum(room.parent == top for room in modules), "rooms", ROOMS_MAX)
    yield from over(package, modules[top], "modules in no room", LOOSE_MODULES_MAX)


def main() -> None:
    """Print the warnings of this checkout."""
    found = list(warnings(Path(__file__).parents[2]))
    print(f"{len(found)} warnings of size:" if found else "no warnings of size")
    for line in found:
        print(f"  {line}")


if __name__ == "__main__":
    main()
