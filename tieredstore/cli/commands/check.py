"""Verdicts: `check` of a tier and all of its bytes, `doctor` of a place for one."""

import asyncio
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import click

from container.errors import Finding
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import bytes_bar, write_json, write_table
from tieredstore.cli.reading import with_tiers
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.location import Location
from tieredstore.config.object_store import PLACE
from tieredstore.config.sources import ConfigError
from tieredstore.diagnosis.directory import Grade, Line, diagnose_directory
from tieredstore.message import Origin
from tieredstore.metrics.summary import losses_text
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import asked_store, unbound_stores
from tieredstore.texts import count_text, printable, size_text


def run(
    invocation: Invocation,
    *,
    brokers: tuple[str, ...],
    java_metadata: Path | None,
    bodies: bool,
    as_json: bool,
) -> int:
    """Verify a tier: journal, segments, checksums, records, and files that nothing refers to."""

    async def check(tier: ReadableTier) -> int:
        found = 0
        origin = Origin(tier.cluster, tier.broker) if brokers else None
        with bytes_bar("checking", _log_bytes(tier)) as progress:
            async for finding in tier.check(bodies=bodies, progress=progress):
                found += 1
                print_finding(finding, as_json=as_json, origin=origin)
        if not as_json:
            with suppress(BrokenPipeError):
                named = f"{origin.broker} of cluster {origin.cluster}: " if origin else ""
                click.echo(printable(f"{named}{_verdict(tier, found)}"))
                if lost := losses_text(tier.queues()):
                    click.echo(f"{lost}: `tieredstore topics` shows where")
                if unbound := unbound_stores(tier.reader.store):
                    click.echo(
                        f"the {' and the '.join(unbound)} store may have encrypted objects of an "
                        "older program, which are not bound to this tier: `tieredstore "
                        "rewrap-keys` binds them"
                    )
        return found

    found = with_tiers(invocation, java_metadata, brokers, check, from_disk=False)
    return FINDINGS if any(count for _, count in found) else 0


def print_finding(finding: Finding, *, as_json: bool, origin: Origin | None = None) -> None:
    """Print a finding at once, with its broker if that is given. Ignores a closed output."""
    with suppress(BrokenPipeError):
        if as_json:
            write_json([(origin._asdict() if origin else {}) | asdict(finding)])
            sys.stdout.buffer.flush()
        else:
            named = f"{origin.broker}: " if origin else ""
            place = f"{finding.path} at {finding.position}"
            click.echo(printable(f"{named}{finding.finding}: {place}: {finding.detail}"))


def _verdict(tier: ReadableTier, found: int) -> str:
    queues = tier.queues()
    messages = sum(queue.messages for queue in queues)
    read = f"{len(queues)} queues, {count_text(messages)} messages, {size_text(_log_bytes(tier))}"
    if not found:
        return f"{read}: nothing is wrong"
    return f"{read}: {found} {'findings' if found > 1 else 'finding'}"


def _log_bytes(tier: ReadableTier) -> int:
    return sum(queue.commit_log_bytes for queue in tier.queues())


def doctor(invocation: Invocation, place: str | None, *, as_json: bool) -> int:
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
