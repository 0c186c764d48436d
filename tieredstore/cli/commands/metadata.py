"""`tieredstore metadata`: to and from the metadata file of RocketMQ's own tiered store."""

import asyncio
import os
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE

import click

from container.java.migration import (
    JavaIndexLimits,
    import_of,
    java_metadata_of,
    read_java_tier,
    rebuild_index,
)
from container.metadata.objects import home_of
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.errors import Corrupt, NotFound, StoreError
from provider.names import is_regular_file, is_there
from provider.posix.store import PosixStore
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import bytes_bar, write_json
from tieredstore.cli.reading import with_tier
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.summary import log_bytes_of, messages_of
from tieredstore.reader.readable_tier import SLOTS_KEY, ReadableTier
from tieredstore.session.owner import open_owner
from tieredstore.session.places import directory_of, local_directory
from tieredstore.session.reader import existing_tier, open_reader, read_bytes
from tieredstore.texts import count_text, printable, size_text

NAME_PART = 50
"""Characters of a file's name that the temporary file beside it repeats."""


def export(
    invocation: Invocation, file: Path, *, overwrite: bool, with_index: bool, as_json: bool
) -> None:
    """Write FILE, a tieredStoreMetadata.json with which RocketMQ's tiered store opens this tier."""
    if is_there(file) and not overwrite:
        raise ConfigError(f"{file} is there already: name another file, or use --overwrite")
    if is_there(file) and not is_regular_file(file):
        raise ConfigError(f"{file} is no regular file: name another")
    config = invocation.load_config()
    where = config.tier_root
    if isinstance(where, TierUrl):
        raise ConfigError(
            f"RocketMQ's tiered store reads files, and a tier in an object store has parts that "
            f"queues share: {where} cannot be opened by it"
        )

    limits = JavaIndexLimits(int(config.settings[SLOTS_KEY].value))

    async def convert(tier: ReadableTier) -> tuple[bytes, int, list[IndexFile]]:
        if home_of(tier.reader.state.attempts):
            raise ConfigError(
                f"RocketMQ's tiered store reads one store, and messages of this tier were "
                f"offloaded to a second one: {where} cannot be opened by it"
            )
        index_files = await rebuild_index(tier.reader, limits) if with_index else []
        raw = await java_metadata_of(tier.reader, clock=SystemClock(), index_files=index_files)
        return raw, len(tier.reader.state.queues), index_files

    raw, queues, index_files = with_tier(invocation, None, convert, damaged=False)
    _write(file, raw)
    row: dict[str, object] = {"path": str(file), "queues": queues, "bytes": len(raw)}
    if with_index:
        row["index_slots"] = limits.slots
        row["index_files"] = [
            {"path": one.object_name, "keys": one.items, "bytes": one.size} for one in index_files
        ]
    if as_json:
        write_json([row])
        return
    click.echo(f"{queues} queues written to {file}")
    if with_index:
        keys, size = sum(one.items for one in index_files), sum(one.size for one in index_files)
        click.echo(
            f"{count_text(keys)} keys in {len(index_files)} index files of {size_text(size)}, for "
            f"a broker with {SLOTS_KEY}={limits.slots}"
        )


def import_(
    invocation: Invocation,
    file: Path,
    *,
    left_out: tuple[tuple[str, int | None], ...],
    partly: tuple[tuple[str, int | None], ...],
    as_json: bool,
) -> None:
    """Take over a tier that RocketMQ's tiered store wrote, with its metadata FILE."""
    config = invocation.load_config()
    if isinstance(config.tier_root, TierUrl):
        raise ConfigError(
            f"a tier of RocketMQ's own store is imported where it lies, which is a directory, and "
            f"not {config.tier_root}"
        )
    rows = asyncio.run(_import(existing_tier(config), file, read_bytes(file), left_out, partly))
    if as_json:
        write_json(rows)
        return
    messages = sum(int(str(row["messages"])) for row in rows)
    size = sum(int(str(row["commit_log_bytes"])) for row in rows)
    click.echo(f"{len(rows)} queues, {count_text(messages)} messages, {size_text(size)} are ours")


async def _import(
    config: Config,
    file: Path,
    raw: bytes,
    left_out: Collection[tuple[str, int | None]],
    partly: Collection[tuple[str, int | None]],
) -> list[dict[str, object]]:
    await _refuse_ours(config)
    clock = SystemClock()
    async with open_reader(config, raw, java_path=str(file)) as reader:
        without = await _left_out(config, reader, file, left_out)
        shortened = _named(reader, file, "--partly", partly)
        total = sum(log_bytes_of(q) for q in reader.state.queues.values() if q.id not in without)
        with bytes_bar("importing", total) as progress:
            contents = await read_java_tier(
                reader,
                without=without,
                extent_bytes_max=config.tier.extent_bytes_max,
                progress=progress,
            )
        ends = {**reader.queue_damage, **contents.unlisted}
        whole = {queue.id for queue in contents.queues}
        for queue in shortened & whole:
            ends.pop(queue, None)
        _refuse_damage({**ends, **contents.damage}, without)
        operations = import_of(reader, contents)
        async with open_owner(config, clock=clock, imported=operations) as tier:
            await tier.close()  # the entry that takes the tier has published the import
    return [
        {
            "topic": queue.id.topic,
            "queue_id": queue.id.queue_id,
            "messages": messages_of(queue),
            "commit_log_bytes": log_bytes_of(queue),
        }
        for queue in contents.queues
    ]


async def _left_out(
    config: Config, reader: TierReader, file: Path, given: Collection[tuple[str, int | None]]
) -> set[QueueId]:
    """Queues to leave out: none of their files may lie in the tier any more.

    Raises:
        ConfigError: the metadata have nothing of that name, or its files are still there.
    """
    found = _named(reader, file, "--without", given)
    for one in sorted(found):
        if await reader.store.list(f"{one}/"):
            raise ConfigError(
                f"--without {one}: move {directory_of(config) / str(one)} out of the tier first, "
                f"or `tier` would write over its files"
            )
    return found


def _named(
    reader: TierReader, file: Path, option: str, given: Collection[tuple[str, int | None]]
) -> set[QueueId]:
    """The queues that an option names.

    Raises:
        ConfigError: the metadata have nothing of that name.
    """
    known = reader.state.queues.keys() | reader.queue_damage.keys()
    found: set[QueueId] = set()
    for topic, queue in given:
        meant = {one for one in known if one.topic == topic and queue in {None, one.queue_id}}
        if not meant:
            name = topic if queue is None else f"{topic}/{queue}"
            raise ConfigError(f"{option} {name}: {file} has no such queue")
        found |= meant
    return found


def _refuse_damage(damage: Mapping[QueueId, StoreError], without: AbstractSet[QueueId]) -> None:
    """Print every queue that cannot be imported, and end; nothing was changed.

    Raises:
        Corrupt: there is such a queue that was not left out.
    """
    left = {queue: error for queue, error in damage.items() if queue not in without}
    if not left:
        return
    for queue, error in sorted(left.items()):
        click.echo(printable(f"{queue} cannot be imported: {error}"), err=True)
    what = "1 queue is" if len(left) == 1 else f"{len(left):,} queues are"
    raise Corrupt(
        f"{what} damaged, so nothing was imported: bring the files back, or rebuild the metadata "
        f"from all existing messages (`tieredstore rebuild --metadata --backup FILE`); --help has "
        f"the options that leave messages out",
        "",
    )


async def _refuse_ours(config: Config) -> None:
    """Refuse a tier that has our journal, before all of it is read."""
    directory = local_directory(directory_of(config))
    store = PosixStore(directory, options=config.posix)
    try:
        if (await TierReader.open(store)).state.queues:
            raise ConfigError(f"the tier in {directory} has a journal already: no import is needed")
    except NotFound:
        return
    finally:
        await store.close()


def _write(file: Path, raw: bytes) -> None:
    """Write the file atomically, through a temporary file beside it.

    A link stays, and its target is replaced. The new file has the old one's mode, and its owner if
    the process may give files away.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        target = file.resolve()
        beside = target.with_name(f".{target.name[:NAME_PART]}.{os.getpid()}.new")
        try:
            with beside.open("wb") as made:
                _take_mode(made.fileno(), target)
                made.write(raw)
                made.flush()
                os.fsync(made.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {(error.strerror or '').lower()}") from error


def _take_mode(made: int, target: Path) -> None:
    """Give the new file mode and owner of the one that it replaces, if there is one."""
    try:
        old = target.stat()
    except FileNotFoundError:
        return
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(made, old.st_uid, old.st_gid)
    os.fchmod(made, S_IMODE(old.st_mode))
