"""Failures of commands: an exit status, and a sentence with the remedy."""

import signal
from collections.abc import Iterator, Mapping
from errno import ENOENT
from itertools import islice

import click

from container.errors import BytesMissing, InUse, NewerVersion, Owned, Refused
from container.names.queue_id import QueueId
from container.names.tier_objects import SNAPSHOT_PREFIX, EntryName, parse_name
from container.record.body import NotDecompressed
from provider.errors import (
    AlreadyExists,
    Closed,
    Corrupt,
    Denied,
    Fenced,
    OutOfRange,
    StoreError,
    Unavailable,
)
from provider.posix.files import as_verdict
from tieredstore.cli.signals import Signalled
from tieredstore.cli.streams import BUG, FINDINGS, OWNED, UNAVAILABLE, WRONG_USE
from tieredstore.config.sources import PLUG_IN_NOTE, ConfigError
from tieredstore.lifetime import cause

QUEUES_SAID_MAX = 8
"""Damaged queues that are named one by one."""
NO_THREAD = "can't start new thread"
"""Text of Python's error when the system refuses a thread."""

NOTHING_WHOLE = (
    "bring @journal and @snapshot back from a backup; without one, move @journal, @snapshot and "
    "@boundary aside, and nothing else: `tieredstore rebuild --metadata` rebuilds them from the "
    "messages (--backup FILE adds the gaps of a `metadata export`)"
)
"""Remedy if no metadata are left that could be served."""
VERDICTS: tuple[tuple[type[StoreError], int, str], ...] = (
    (NewerVersion, WRONG_USE, "install a newer tieredstore"),
    (InUse, OWNED, ""),
    (Denied, WRONG_USE, ""),
    (NotDecompressed, FINDINGS, "`tieredstore check --bodies` finds every such message"),
    (Corrupt, FINDINGS, "`tieredstore check` verifies every checksum"),
    (
        BytesMissing,
        FINDINGS,
        "bring the file back; `tieredstore check` finds all that is missing",
    ),
    (OutOfRange, FINDINGS, ""),
    (Refused, FINDINGS, "it contradicts itself or what is published, so nothing was changed"),
    (Fenced, OWNED, "let only one of them run"),
    (Owned, OWNED, "end that process, or take the tier from it with --take-over"),
    (Unavailable, UNAVAILABLE, "try again"),
    (Closed, UNAVAILABLE, "try again"),
    (AlreadyExists, UNAVAILABLE, "try again"),
)
"""Exit status and advice by class, the first match; "" if the reason includes the advice."""


def explain(error: BaseException) -> tuple[int, str]:
    """The exit status and the sentence for the error that ended a command; "" prints nothing."""
    error = cause(error)
    status, sentence = BUG, ""
    match error:
        case SystemExit():
            status = error.code if isinstance(error.code, int) else FINDINGS
        case KeyboardInterrupt() | click.Abort():
            status, sentence = 128 + signal.SIGINT, "interrupted"
        case Signalled():
            status, sentence = 128 + error.number, str(error)
        case _ if exhausted := _exhausted(error):
            status, sentence = UNAVAILABLE, exhausted
        case click.UsageError():
            status, sentence = WRONG_USE, _usage(error)
        case click.ClickException():
            status, sentence = WRONG_USE, error.format_message()
        case ConfigError():
            status, sentence = WRONG_USE, str(error)
        case StoreError():
            status, sentence = _verdict(error)
        case OSError():
            where = str(error.filename or "")
            # Without a file it is no missing object, whatever Python calls the class.
            status, sentence = _verdict(
                (as_verdict(error, where) if where or error.errno != ENOENT else None)
                or Unavailable((error.strerror or str(error)).lower(), where)
            )
        case _:
            name = type(error).__name__
            notes = [one for one in getattr(error, "__notes__", ()) if one.startswith(PLUG_IN_NOTE)]
            whose = notes[0] if notes else "a bug of tieredstore's"
            sentence = f"{whose}: {name}: {error}; --debug shows where"
    return status, sentence


def _exhausted(error: BaseException) -> str:
    """Describe the exhausted resource of machine or process; "" for any other error."""
    if isinstance(error, MemoryError):
        return "out of memory: `tieredstore config` prints what its settings need, and each of them"
    if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        return "the system starts no further thread: raise the limit of processes or of memory"
    return ""


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    path = error.ctx.command_path if error.ctx else "tieredstore"
    return f"{message}; see `{path} --help`"


def served_in_part(damage: Corrupt) -> str:
    """The sentence for a tier that is read although its journal is damaged."""
    return (
        f"{damage}: later entries are not served, all earlier ones are: "
        f"{_remedy(damage) or 'bring it back from a backup'}"
    )


def damage_texts(damage: Mapping[QueueId, StoreError]) -> Iterator[str]:
    """A sentence for each damaged queue of a tier that RocketMQ's store wrote, or for many."""
    for queue, error in islice(damage.items(), QUEUES_SAID_MAX):
        yield f"not all of {queue} is served: {error}"
    if len(damage) > QUEUES_SAID_MAX:
        yield (
            f"not all of {len(damage) - QUEUES_SAID_MAX:,} more queues is served: `tieredstore "
            f"check --java-metadata` names each"
        )


def _remedy(error: StoreError) -> str:
    """Return the remedy for a damaged journal entry; "" for any other error."""
    name = parse_name(error.path)
    if not isinstance(error, Corrupt):
        return ""
    if error.path == SNAPSHOT_PREFIX or name == EntryName(1):
        return NOTHING_WHOLE
    if not isinstance(name, EntryName):
        return ""
    return (
        f"bring that file back from a backup; without one, `tieredstore repair --journal-to "
        f"{name.sequence - 1}` continues without it"
    )


def _verdict(error: StoreError) -> tuple[int, str]:
    for kind, status, general in VERDICTS:
        if isinstance(error, kind):
            has_advice = "`tieredstore repair --hot-log`" in str(error)
            advice = _remedy(error) or ("" if has_advice else general)
            return status, f"{error}{': ' if advice else ''}{advice}"
    return UNAVAILABLE, str(error)
