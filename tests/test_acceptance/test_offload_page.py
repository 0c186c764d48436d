"""Every line of stores, offload, object stores and jobs names tests that exist, or a reason."""

from pathlib import Path

import pytest

from tests.test_acceptance.test_lines import named, names_in

OFFLOAD, STORE, OBJECT, OFFLINE = (
    Path(__file__).parent / f"{name}_lines.md"
    for name in ("offload", "message_store", "object", "offline")
)
KAFKA_LINES, FIRST_LINE, LAST_LINE = 10, 15, 106
LINES = {STORE: (73, 18), OBJECT: (38, 24), OFFLINE: (35, 27)}
"""How many lines say what there is, and what must be shown."""


def rows(page: Path) -> list[list[str]]:
    """The cells of the table, without its head."""
    lines = page.read_text().splitlines()
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    return found[1:]


@pytest.mark.parametrize("page", [OFFLOAD, *LINES], ids=lambda page: page.stem)
def test_every_line_names_a_test_that_exists_or_a_reason(page: Path) -> None:
    for row in rows(page):
        assert len(row) == 5, row
        tests = named(row[3])
        assert tests or row[4], row
        for one in tests:
            path, _, test = one.partition("::")
            assert test.startswith("test_"), one
            assert test in names_in(path), one


def lines_of(page: Path) -> dict[str, list[int]]:
    """The numbers of each source's lines."""
    lines: dict[str, list[int]] = {}
    for source, line, *_ in rows(page):
        lines.setdefault(source, []).append(int(line))
    return lines


def test_no_line_is_left_out() -> None:
    lines = lines_of(OFFLOAD)
    assert lines["Kafka"] == list(range(1, KAFKA_LINES + 1))
    assert lines["Pulsar, Pravega"] == list(range(FIRST_LINE, LAST_LINE + 1))
    for page, (there, shown) in LINES.items():
        assert lines_of(page) == {
            "what there is": list(range(1, there + 1)),
            "must show": list(range(1, shown + 1)),
        }
