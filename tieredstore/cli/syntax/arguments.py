"""Arguments and options that several commands share, and their types."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from tieredstore.interrupt import imported

DIGITS_MAX = 40
OFFSET_MAX = 2**63 - 1
QUEUE_MAX = 2**31 - 1
_DIGITS = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)


class GivenPath(click.Path):
    """A path; refuses an empty text, such as an unset shell variable."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Refuse an empty text, which would otherwise be the working directory."""
        if not os.fspath(value):
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.ParamType[int]):
    """A number from `least` to `most`, in plain digits without leading zeros."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Refuse a text that is no number or out of bounds."""
        text = str(value)
        if not _DIGITS.fullmatch(text):
            self.fail(f"{text[:DIGITS_MAX]!r} is no whole number", param, ctx)
        number = int(text[:DIGITS_MAX])  # so many digits are out of bounds in any case
        if not self._least <= number <= self._most:
            bound = f"less than {self._least}" if number < self._least else f"over {self._most}"
            self.fail(f"{text[:DIGITS_MAX]} is {bound}", param, ctx)
        return number


class MomentType(click.ParamType[int]):
    """A time, in Unix ms."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Refuse a text that is no time."""
        try:
            now_ms = imported("provider.clock").SystemClock().now_ms()
            return imported("tieredstore.reader.cursor").parse_moment(str(value), now_ms=now_ms)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TopicType(click.ParamType[str]):
    """A topic: one safe path component."""

    name = "topic"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Refuse a text that cannot be a topic, before it becomes part of a path."""
        text = str(value)
        reason = imported("container.names.queue_id").check_path_component(text)
        if reason is not None:
            self.fail(f"this is no topic: {reason}", param, ctx)
        return text


class QueueNameType(click.ParamType[tuple[str, int | None]]):
    """`TOPIC` or `TOPIC/QUEUE`, as messages name queues."""

    name = "queue"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | None]:
        """Refuse a text that can be neither."""
        topic, slash, number = str(value).partition("/")
        queue = QUEUE.convert(number, param, ctx) if slash else None
        return TOPIC.convert(topic, param, ctx), queue


class TopicsType(click.ParamType[frozenset[str]]):
    """`TOPIC,TOPIC`: at least one. A name with a comma needs an option of one topic."""

    name = "topics"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        """Refuse a text with a part that cannot be a topic."""
        return frozenset(TOPIC.convert(one.strip(), param, ctx) for one in str(value).split(","))


GIVEN_PATH = GivenPath(path_type=Path)
GIVEN_PLACE = GivenPath(path_type=str)
"""A directory, or a URL."""
MOMENT = MomentType()
TOPIC = TopicType()
TOPICS = TopicsType()
QUEUE = WholeNumber(0, QUEUE_MAX)
QUEUE_NAME = QueueNameType()


CommandT = TypeVar("CommandT", bound=Callable[..., object])
LOCAL, SPARK = "local", "spark"
PROCESSES_MAX = 1024
SPLIT_BYTES, SPLIT_BYTES_MAX = 128 << 20, 1 << 40
"""The first as in `offline/scan/planning.py`."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Take the tier even from a living owner, which then ends with exit status 4.",
)
standby_option = click.option(
    "--standby",
    is_flag=True,
    help="Wait while another process owns the tier, and take over within twice its lease "
    "(tieredStoreOwnerLease) when it ends or shows no sign of life.",
)
new_tier_option = click.option(
    "--new-tier",
    is_flag=True,
    help="Use another tier than the one that the store knows, or begin an empty one there.",
)
java_metadata_option = click.option(
    "--java-metadata",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Read a tier that RocketMQ's tiered store wrote, with its tieredStoreMetadata.json.",
)
brokers_option = click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="PATTERN",
    help="Only this broker, or all that fit, as '*'; repeatable. Rows name cluster and broker.",
)


def engine_options(command: CommandT) -> CommandT:
    """Add the options of a job's engine."""
    engine = click.option(
        "--engine",
        type=click.Choice([LOCAL, SPARK]),
        default=LOCAL,
        help="Where the work is done: by processes of this machine (default), or by Spark, as "
        "spark-submit, SPARK_REMOTE or spark-defaults.conf say.",
    )
    processes = click.option(
        "--processes",
        type=WholeNumber(1, PROCESSES_MAX),
        metavar="N",
        help="Worker processes on this machine. Default: one for each core.",
    )
    split_bytes = click.option(
        "--split-bytes",
        type=WholeNumber(1, SPLIT_BYTES_MAX),
        default=SPLIT_BYTES,
        metavar="BYTES",
        help="What one worker scans at a time. Default: 128 MiB.",
    )
    return engine(processes(split_bytes(command)))
