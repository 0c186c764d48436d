"""The tables in FORMAT.md are those that the declarations give."""

from pathlib import Path

import pytest

import container
from container.java.metadata import JavaSegment
from tests.support.format_tables import FormatTable, field_notes, fill, tables

DOCUMENT = Path(container.__file__).with_name("FORMAT.md")
"""It is shipped with the package."""


def test_the_document_has_the_tables_of_today() -> None:
    text = DOCUMENT.read_text()
    assert fill(text, tables()) == text, (
        "run python -m tests.support.format_tables < container/FORMAT.md"
    )


def test_every_declared_table_is_in_the_document_once() -> None:
    text = DOCUMENT.read_text()
    for table in tables():
        assert text.count(f"<!-- table: {table.title} -->") == 1, table.title
        assert str(table) in text


def test_a_changed_declaration_would_change_the_document() -> None:
    changed = FormatTable("coda", ("a",), (("b",),))
    renewed = fill("x\n<!-- table: coda -->\nold\n<!-- end -->\ny", [changed])
    assert renewed == "x\n<!-- table: coda -->\n| a |\n| --- |\n| b |\n<!-- end -->\ny"


def test_a_table_that_nobody_declares_is_an_error() -> None:
    with pytest.raises(KeyError):
        fill("<!-- table: nobody's -->\n<!-- end -->", tables())


def test_notes_come_from_the_strings_under_the_fields() -> None:
    assert field_notes(JavaSegment)["size"] == "Committed bytes."
