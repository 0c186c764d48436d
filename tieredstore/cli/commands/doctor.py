"""`tieredstore doctor`: whether a place can keep a tier, and what to change."""

import asyncio
from dataclasses import replace
from pathlib import Path

from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.location import Location
from tieredstore.config.object_store import PLACE
from tieredstore.config.sources import ConfigError
from tieredstore.diagnosis.directory import diagnose_directory
from tieredstore.diagnosis.promises import Grade, Line
from tieredstore.session.places import asked_store


def run(invocation: Invocation, place: str | None, *, as_json: bool) -> int:
    """Report whether PLACE can keep a tier: a directory, or a URL such as s3://bucket/prefix."""
    if place is not None:
        invocation.defines = (*invocation.defines, f"{PLACE}={place}")
    config = invocation.load_config()
    lines = diagnose(config, config.tier_root)
    if as_json:
        write_json(
            {
                "check": one.check,
                "grade": one.grade.value,
                "detail": one.detail,
                "advice": one.advice,
            }
            for one in lines
        )
    else:
        cells = [(one.grade.value, one.check, _text(one)) for one in lines]
        write_table(("", "check", "finding"), cells)
    return FINDINGS if any(one.grade is Grade.BAD for one in lines) else 0


def diagnose(config: Config, place: Location) -> list[Line]:
    """All lines about a place. Blocks.

    Raises:
        ConfigError: it is neither a directory nor a bucket.
        Denied, Unavailable: nothing could be asked.
    """
    if isinstance(place, Path):
        return diagnose_directory(place)
    if place.scheme != "s3":
        raise ConfigError(f"doctor looks at directories and s3:// URLs, not at {place}")
    from tieredstore.diagnosis.s3 import diagnose_bucket, diagnose_requests  # noqa: PLC0415 - an extra

    lines = diagnose_bucket(config, place)
    last = lines[-1]
    if last.is_final and last.check != "endpoint":
        return lines
    made = asyncio.run(asked_store(config, place, diagnose_requests))
    if last.is_final and made[0].grade is Grade.BAD:  # our own requests say it better
        return [*lines[:-1], replace(last, detail=made[0].detail, advice="")]
    return [*lines, *made]


def _text(line: Line) -> str:
    return f"{line.detail}: {line.advice}" if line.advice else line.detail
