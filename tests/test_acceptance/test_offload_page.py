"""Every line of `offload_lines.md` names tests that exist, or says why there is none."""

from pathlib import Path

from tests.test_acceptance.test_lines import named, names_in

PAGE = Path(__file__).parent / "offload_lines.md"
KAFKA_LINES, FIRST_LINE, LAST_LINE = 10, 15, 106


def rows() -> list[list[str]]:
    """The cells of the table, without its head."""
    lines = PAGE.read_text().splitlines()
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    return found[1:]


def test_every_line_names_a_test_that_exists_or_a_reason() -> None:
    for row in rows():
        assert len(row) == 5, row
        tests = named(row[3])
        assert tests or row[4], row
        for one in tests:
            path, _, test = one.partition("::")
            assert test.startswith("test_"), one
            assert test in names_in(path), one


def test_no_line_is_left_out() -> None:
    lines: dict[str, list[int]] = {}
    for source, line, *_ in rows():
        lines.setdefault(source, []).append(int(line))
    assert lines["Kafka"] == list(range(1, KAFKA_LINES + 1))
    assert lines["Pulsar, Pravega"] == list(range(FIRST_LINE, LAST_LINE + 1))
