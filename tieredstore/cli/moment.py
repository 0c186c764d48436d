"""A point in time on the command line."""

import click

from provider.clock import SystemClock
from tieredstore.reading.moment import parse_moment


class MomentType(click.ParamType[int]):
    """A time, in Unix ms."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Refuse a text that is no time."""
        try:
            return parse_moment(str(value), now_ms=SystemClock().now_ms())
        except ValueError as error:
            self.fail(str(error), param, ctx)


MOMENT = MomentType()
