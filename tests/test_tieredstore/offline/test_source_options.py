"""What may be said to Spark's source, and how a wrong word is answered: without Spark."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.planning import WantedMessages
from tieredstore.offline.spark import option_text
from tieredstore.offline.spark.options import OPTIONS, WRITE_OPTIONS, stream_options, table_options
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
        ({"topicPattern": "["}, "topicPattern: '[' is no regular expression: unterminated"),
        ({"topicPattern": "A", "topics": "A"}, "by topics or by topicPattern: give one of them"),
        ({"maxRowsPerTrigger": "3"}, "an option of a stream only"),
        ({"objectStoreSecretKey": "x"}, "is a secret: give it in the environment"),
        ({"startTime": "soon"}, "startTime: 'soon' is no time"),
        ({"startTime": "-1h", "endTime": "-2h"}, "endTime is not later than startTime"),
        ({"startingOffsets": "latest"}, "startingOffsets: 'latest' is neither 'earliest' nor a"),
        ({"endingOffsets": "earliest"}, "endingOffsets: 'earliest' is neither 'latest' nor a JSON"),
        ({"paths": '["a","b"]'}, "a DataFrame is of one place: join those of several by union"),
        ({"broker": "*", "endingOffsets": '{"A/0": 1}'}, "endingOffsets is of one broker: name it"),
        ({"Broker": "a,b", "javaMetadata": "f"}, "javaMetadata is of one broker: name it"),
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
        ({"broker": "east-?"}, "broker: a stream is of one broker: begin one for each"),
        ({"startingOffsets": "first"}, "'first' is neither 'earliest' nor 'latest' nor a JSON"),
    ],
)
def test_a_wrong_option_of_a_stream_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        stream_options(given, now_ms=NOW_MS)


@pytest.mark.parametrize("options", [table_options, stream_options])
def test_a_pattern_stands_for_whole_names_of_topics_whenever_they_come(options: Any) -> None:
    wanted = options({"topicPattern": "%RETRY%.*|A", "queues": "0"}, now_ms=NOW_MS).wanted
    names = ["%RETRY%g", "A", "AB", "BA", "x%RETRY%g"]
    assert [wanted.has(QueueId(name, 0)) for name in names] == [True, True, False, False, False]
    assert wanted.absence([QueueId("A", 0)]) is None
    assert "has a queue 0; there are 1" in wanted.absence([QueueId("A", 1), QueueId("AB", 0)])


def test_words_of_offsets_have_any_case() -> None:
    found = stream_options({"startingOffsets": "Latest"}, now_ms=NOW_MS)
    assert (found.begins_at, found.starts) == ("latest", {})
    assert table_options({"startingOffsets": "EARLIEST"}, now_ms=NOW_MS).wanted.starts == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["A", "B"], "A,B"),
        ([0, 3], "0,3"),
        ({"A/0": 17}, '{"A/0": 17}'),
        ("A", "A"),
        (Path("conf"), "conf"),
        (datetime(2026, 11, 24, tzinfo=UTC), "2026-11-24T00:00:00+00:00"),
        (None, None),
        (True, True),
        (7, 7),
    ],
)
def test_lists_and_objects_are_options_in_python(value: Any, text: object) -> None:
    assert option_text(value) == text


def test_a_list_cannot_hold_what_separates_its_values() -> None:
    with pytest.raises(ValueError, match="'a,b' holds a comma"):
        option_text(["a,b"])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("Bodi",), "has no column 'Bodi': did you mean body?"),
        (("body", "Body"), "the column 'Body' of the table messages is named twice"),
        (("body", "body"), "the column 'body' of the table messages is named twice"),
        ((), "no column is named: the table messages has topic, queue_id"),
        ("body", "columns are a list of names: write ['body']"),
    ],
)
def test_columns_of_which_no_table_can_be_made_are_refused(
    names: Sequence[str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        sql_types("messages", names)


def test_columns_have_any_case() -> None:
    assert sql_types("units", ["Queue_Offset", "TOPIC"]) == "queue_offset bigint, topic string"


def test_a_table_that_is_none_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="there is no table 'segment': write segments"):
        sql_types("segment")


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (WantedMessages(topics=frozenset({"A", "B"}), queues=frozenset({0, 1})), None),
        (WantedMessages(queues=frozenset({QueueId("B", 0)})), None),
        (WantedMessages(topics=frozenset({"C"})), "has nothing of C; there are A, B"),
        (WantedMessages(queues=frozenset({9})), "has a queue 9; there are 0, 1"),
        (WantedMessages(topics=frozenset({"B"}), queues=frozenset({1})), "queue 1; there are 0"),
        (WantedMessages(queues=frozenset({QueueId("A", 7)})), "A/7; the topic has queue 0, 1"),
        (
            WantedMessages(topics=frozenset({"A"}), queues=frozenset({QueueId("B", 0)})),
            "the queue B/0 is of none of the topics that are wanted",
        ),
    ],
)
def test_what_is_named_and_not_there_is_told(wanted: WantedMessages, sentence: str | None) -> None:
    told = wanted.absence([QueueId("A", 0), QueueId("A", 1), QueueId("B", 0)])
    assert told is None if sentence is None else sentence in str(told)


def test_the_page_lists_every_option_and_every_column_with_its_meaning() -> None:
    page = PAGE.read_text()
    for name, meaning in [*OPTIONS.items(), *WRITE_OPTIONS.items()]:
        assert f"| `{name}` | {meaning} |" in page, name
    for table in SCHEMAS:
        assert sql_types(table).replace(",", ", ").replace("  ", " ") in page, table
