"""What may be said to Spark's source, and how a wrong word is answered: without Spark."""

import re
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from tieredstore.config.sources import ConfigError
from tieredstore.offline.spark.options import OPTIONS, stream_options, table_options
from tieredstore.offline.spark.write_options import WRITE_OPTIONS
from tieredstore.offline.tables.schemas import SCHEMAS, sql_types

NOW_MS = 1_800_000_000_000
PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_names_have_any_case_and_keys_of_the_configuration_are_taken() -> None:
    found = table_options(
        {
            "PATH": "tier",
            "Topics": "A, B",
            "queues": "1,A/2",
            "starttime": "-2h",
            "objectstoreendpoint": "http://127.0.0.1:1",
        },
        now_ms=NOW_MS,
    )
    assert found.address.where == "tier"
    assert found.address.settings == {"objectStoreEndpoint": "http://127.0.0.1:1"}
    assert found.wanted.since_ms == NOW_MS - 7_200_000
    kept = [("A", 1), ("A", 2), ("A", 3), ("B", 1), ("B", 2), ("C", 1)]
    assert [found.wanted.has(QueueId(*one)) for one in kept] == [
        True, True, False, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tables": "units"}, "no option tables: did you mean table?"),
        ({"table": "unit"}, "there is no 'unit': write units"),
        ({"splitBytes": "many"}, "splitBytes: 'many' is no whole number"),
        ({"splitBytes": "1"}, "splitBytes: 1 is less than 1024"),
        ({"damaged": "ignore"}, "write fail or skip, not 'ignore'"),
        ({"pushFilters": "yes"}, "write true or false, not 'yes'"),
        ({"queues": "A"}, "'A' names no queue"),
        ({"maxRowsPerTrigger": "3"}, "an option of a stream only"),
        ({"objectStoreSecretKey": "x"}, "is a secret: give it in the environment"),
        ({"startTime": "soon"}, "startTime: 'soon' is no time"),
    ],
)
def test_a_wrong_option_of_a_table_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        table_options(given, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"table": "units"}, "a stream has messages only, not units"),
        ({"startingOffsets": "latest", "startTime": "-1h"}, "give one of them"),
        ({"endTime": "-1h"}, "an option of a table only"),
        ({"startingOffsets": "first"}, "'first' is neither 'earliest' nor 'latest'"),
    ],
)
def test_a_wrong_option_of_a_stream_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        stream_options(given, now_ms=NOW_MS)


def test_the_page_lists_every_option_and_every_column_with_its_meaning() -> None:
    page = PAGE.read_text()
    for name, meaning in [*OPTIONS.items(), *WRITE_OPTIONS.items()]:
        assert f"| `{name}` | {meaning} |" in page, name
    for table in SCHEMAS:
        assert sql_types(table).replace(",", ", ").replace("  ", " ") in page, table
