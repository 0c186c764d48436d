"""Types of arguments and options that several commands share."""

import os
import re
from pathlib import Path

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
