"""Every line of the pages of offload, offline and message store names tests, or a reason."""

from pathlib import Path

import pytest

from tests.test_acceptance.test_lines import named, names_in

OFFLOAD, OFFLINE, STORE = (
    Path(__file__).parent / f"{name}_lines.md" for name in ("offload", "offline", "message_store")
)
KAFKA_LINES, FIRST_LINE, LAST_LINE = 10, 15, 106
THERE_LINES, SHOWN_LINES = 35, 27
STORE_THERE_LINES, STORE_SHOWN_LINES = 73, 18


def rows(page: Path) -> list[list[str]]:
    """The cells of the table, without its head."""
    lines = page.read_text().splitlines()
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    return found[1:]


@pytest.mark.parametrize("page", [OFFLOAD, OFFLINE, STORE], ids=lambda page: page.stem)
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
    assert lines_of(OFFLINE) == {
        "what there is": list(range(1, THERE_LINES + 1)),
        "must show": list(range(1, SHOWN_LINES + 1)),
    }
    assert lines_of(STORE) == {
        "what there is": list(range(1, STORE_THERE_LINES + 1)),
        "must show": list(range(1, STORE_SHOWN_LINES + 1)),
    }
