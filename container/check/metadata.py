"""Check of metadata objects: journal, snapshots, manifests, reference counts of parts.

The first offload creates an object there that names its tier, and the journal records the place. A
place without that object is another store: without this check, all offloaded bytes would seem lost.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise

import orjson

from container.errors import Finding, NewerVersion
from container.journal.frame import Frame, FrameKind, copy_in, decode_entry
from container.journal.reader import decode_snapshot
from container.metadata.objects import home_of, mark_name, place_of, references, references_of
from container.metadata.records import Attempt, Broker
from container.metadata.state import TierState
from container.names.tier_objects import (
    MADE_AGAIN,
    OWNER_PREFIX,
    BoundaryName,
    ClaimName,
    EntryName,
    FollowedName,
    KeptName,
    ManifestName,
    MetadataName,
    RegistrationName,
    ScrubName,
    SignName,
    SnapshotName,
    parse_name,
)
from container.queue.manifest import ManifestReader
from container.tier_view import ATTEMPTS_MAX, TierView, take_newer
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, OutOfRange, Unavailable
from provider.object_store import Buffer, ObjectStore
from provider.stores.in_place_segments import LOCK_NAME
from provider.stores.packed_segments import PartName, parts_prefix
from provider.stores.two_stores import is_offloaded
from provider.stores.verified import PROBE_PREFIX

_KINDS = {
    EntryName: FrameKind.ENTRY,
    SnapshotName: FrameKind.SNAPSHOT,
    ManifestName: FrameKind.MANIFEST,
    BoundaryName: FrameKind.BOUNDARY,
}
SNAPSHOTS_MIN = 2
"""Snapshots at and above a boundary: it is never raised before there are this many."""
TRIES_MAX = 3
"""Failed deletions after which a tombstone is reported."""


def own_objects(state: TierState) -> Iterator[str]:
    """Names outside `@` in the metadata, besides the segments of live queues."""
    yield from state.tombstones
    yield from state.index_files


async def listed_objects(tier: TierView) -> dict[str, int]:
    """Return the size of every object of a tier, including those in its home in the second store.

    A listing, and one more if segments were ever offloaded.

    Raises:
        Denied: there is a second store, but its place is not configured.
        Unavailable: the storage does not answer.
    """
    listed = await tier.store.list("")
    home = home_of(tier.state.attempts)
    if home:
        listed = [*listed, *await tier.store.list(parts_prefix(home))]
    return {entry.name: entry.size_bytes for entry in listed}


async def ask_for_second_store(tier: TierView) -> None:
    """Send one request to the second store if segments were ever offloaded there. Otherwise none.

    Raises:
        Denied: its place is not configured, or it refuses.
        Unavailable: it does not answer.
    """
    home = parts_prefix(home_of(tier.state.attempts))
    if is_offloaded(home):
        await tier.store.list(home, after=f"{home}~")


async def check_journal(
    store: ObjectStore, state: TierState, sizes: Mapping[str, int]
) -> AsyncIterator[Finding]:
    """Yield damaged, missing and unknown objects below `@`. Reads each of them once.

    An object that upkeep deletes during the check is not a finding. Nor is an entry that is
    obsolete by a boundary.
    """
    names = {name: parsed for name in sorted(sizes) if (parsed := parse_name(name)) is not None}
    boundary = max((n.sequence for n in names.values() if isinstance(n, BoundaryName)), default=0)
    for finding in _check_numbers(names, boundary):
        yield finding
    known = max((kept.sequence for name in sizes if (kept := KeptName.parse(name))), default=0)
    last: bytes | None = None
    for name, parsed in names.items():
        if isinstance(parsed, EntryName) and parsed.sequence <= boundary:
            continue
        try:
            raw = await store.read(name)
        except NotFound:
            last = None
            continue
        try:
            known = max(known, _sequence_in(raw, parsed))
            if isinstance(parsed, EntryName):
                last = _compared(raw, parsed, last)
        except (Corrupt, NewerVersion) as error:
            last = None
            kind = _KINDS[type(parsed)].name.lower()
            yield Finding(f"{kind}-damaged", name, error.position, error.reason)
    for finding in _check_end(names, state, known):
        yield finding
    for finding in _check_known(state, sizes):
        yield finding


def _check_numbers(names: Mapping[str, MetadataName], boundary: int) -> Iterator[Finding]:
    """Yield findings from the names alone: holes, and missing snapshots and boundaries."""
    snapshots = [n.sequence for n in names.values() if isinstance(n, SnapshotName)]
    entries = [n.sequence for n in names.values() if isinstance(n, EntryName)]
    above = [boundary, *(number for number in entries if number > boundary)]
    for before, after in pairwise(above):
        if after == before + 1:
            continue
        if before == boundary and after - 1 in snapshots:  # they were deleted up to a boundary
            name, detail = str(BoundaryName(after - 1)), f"the entries begin at {after}"
            yield Finding("boundary-missing", name, 0, detail)
        else:
            yield Finding("journal-hole", str(EntryName(before + 1)), 0, f"the next is {after}")
    usable = [number for number in snapshots if number >= boundary]
    if boundary and boundary not in snapshots:
        name = str(SnapshotName(boundary, 0, "")).partition("-")[0]
        yield Finding("snapshot-missing", name, 0, "the boundary was raised to it")
    elif boundary and len(usable) < SNAPSHOTS_MIN:
        name, count = str(BoundaryName(boundary)), len(usable)
        detail = f"{count} of {SNAPSHOTS_MIN} snapshots that a boundary needs are there"
        yield Finding("snapshot-missing", name, 0, detail)


def _sequence_in(raw: Buffer, name: MetadataName) -> int:
    """Decode an object, compare it with its name, and return the sequence in it.

    Raises:
        Corrupt: it is damaged, or contradicts its name.
        NewerVersion: a newer program wrote it.
    """
    match name:
        case SnapshotName():
            return decode_snapshot(raw, name).sequence
        case EntryName():
            return decode_entry(raw, name)[0].sequence
        case BoundaryName() | ManifestName():
            frame = Frame.decode(raw, _KINDS[type(name)], path=str(name))
            if isinstance(name, BoundaryName):
                described: object = BoundaryName(frame.sequence)
            else:
                described = name._replace(epoch=frame.epoch, nonce=frame.nonce.hex())
            if described != name:
                raise Corrupt(f"the object describes itself as {described}", str(name))
            return frame.sequence


def _compared(raw: Buffer, name: EntryName, last: bytes | None) -> bytes:
    """Return an entry's own bytes, after comparing its copy with the previous entry.

    Raises:
        Corrupt: the copy is damaged, or differs from the previous entry.
    """
    copy = copy_in(raw, name)
    _, own = decode_entry(raw, name)
    if copy is not None and last is not None and copy != last:
        reason = "its copy of the entry before it differs from that entry"
        raise Corrupt(reason, str(name), len(own))
    return own


def _check_end(
    names: Mapping[str, MetadataName], state: TierState, known: int
) -> Iterator[Finding]:
    """Yield missing newest entries that other objects refer to.

    Other losses there are undetectable.
    """
    newest, epoch = 0, 0
    for name in names.values():
        if isinstance(name, EntryName | BoundaryName):
            newest = max(newest, name.sequence)
        else:
            epoch = max(epoch, name.epoch)
    if newest < known:
        detail = f"other objects know entries up to {known}"
        yield Finding("journal-end-missing", str(EntryName(newest + 1)), 0, detail)
    elif epoch > state.broker.epoch:
        detail = f"other objects know epoch {epoch}, the journal of {state.broker.epoch}"
        yield Finding("journal-end-missing", str(EntryName(newest + 1)), 0, detail)


def referenced_manifests(state: TierState) -> set[str]:
    """Manifests that queues refer to."""
    return {ref.object_name for queue in state.queues.values() for ref in queue.manifests}


def unused_objects(state: TierState, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Yield unpublished manifests and copies of earlier owners, which the next owner deletes.

    Those of the present owner may be about to be published.
    """
    referenced = referenced_manifests(state)
    for name in sorted(sizes):
        parsed = parse_name(name) or KeptName.parse(name)
        if not isinstance(parsed, ManifestName | KeptName) or parsed.epoch >= state.broker.epoch:
            continue
        if name not in referenced and name not in state.tombstones:
            yield Finding("orphan", name, 0, f"nothing refers to these {sizes[name]} bytes")


def _check_known(state: TierState, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Yield unknown objects below `@`, missing manifests, and tombstones with repeated failures."""
    referenced = referenced_manifests(state)
    for name in sorted(referenced - sizes.keys()):
        yield Finding("manifest-missing", name, 0, "a queue refers to it")
    home = home_of(state.attempts)
    own = {LOCK_NAME, mark_name(home)}
    prefixes = (
        MADE_AGAIN,  # a tier that was recreated twice has a mark of each time
        PROBE_PREFIX,
        f"{parts_prefix(home)}{PROBE_PREFIX}",
        f"{parts_prefix(home)}{OWNER_PREFIX}",
    )
    for name in sorted(sizes):
        if not name.startswith("@") or name in state.tombstones:
            continue
        parsed = parse_name(name) or KeptName.parse(name) or PartName.parse(name)
        parsed = parsed or FollowedName.parse(name) or ClaimName.parse(name)
        parsed = parsed or ScrubName.parse(name) or SignName.parse(name)
        parsed = parsed or RegistrationName.parse(name)
        if parsed is None and name not in own and not name.startswith(prefixes):
            detail = f"no object of a tier has such a name: {sizes[name]} bytes"
            yield Finding("unknown-object", name, 0, detail)
    for name, tombstone in sorted(state.tombstones.items()):
        if tombstone.tries >= TRIES_MAX and name in sizes:
            detail = f"{tombstone.tries} deletions failed; nothing refers to {sizes[name]} bytes"
            yield Finding("undeletable", name, 0, detail)


PART_COUNT = "part-count"


async def check_parts(tier: TierView) -> AsyncIterator[Finding]:
    """Yield parts whose counts differ from a recount. One request per manifest.

    Yields nothing if segments are files, or an older program wrote the tier. A part that changes
    during the count is counted again. A tier that changes all the time is not reported.
    """
    manifests = ManifestReader(tier.store)
    for _ in range(ATTEMPTS_MAX):
        state = tier.state.copy()
        if not state.parts_counted or not state.parts:
            return
        try:
            wanted = await _recounted(state, manifests)
        except (Corrupt, Denied, OutOfRange):
            return  # the check of the queue has reported it
        counted = Counter({name: part.references for name, part in state.parts.items()})
        wrong = [name for name in sorted({*wanted, *counted}) if counted[name] != wanted[name]]
        if not wrong:
            return
        await take_newer(tier)
        if tier.state.sequence == state.sequence:
            for name in wrong:
                detail = f"{wanted[name]} extents name it, {counted[name]} are counted"
                yield Finding(PART_COUNT, name, 0, detail)
            return


async def _recounted(state: TierState, manifests: ManifestReader) -> Counter[str]:
    wanted = Counter[str]()
    for queue in state.queues.values():
        wanted.update(references_of(queue))
        for ref in queue.manifests:
            wanted.update(references(await manifests.segments(ref)))
    return wanted


FORMAT = 1


def mark(home: str, broker: Broker) -> bytes:
    """Content of the object that identifies a second store: JSON, readable for people too."""
    fields = {"format": FORMAT, "home": home, "cluster": broker.cluster, "broker": broker.name}
    return orjson.dumps(fields)


async def refuse_other_second_store(
    store: ObjectStore, attempts: Mapping[str, Attempt], given: str
) -> None:
    """Refuse a second store without the object that the tier's first offload created there.

    One read. None if nothing was offloaded, no second store is configured, or the offload has not
    created the object yet.

    Args:
        store: both stores.
        attempts: of the tier's state.
        given: configured place of the second store. "": none.

    Raises:
        Denied: it is another one, and the error names both places; or it refuses access.
        NewerVersion: a newer program has offloaded the tier in another way.
        Unavailable: it does not answer.
    """
    home, expected = home_of(attempts), place_of(attempts)
    if not given or not expected:
        return
    name = mark_name(home)
    try:
        raw = bytes(await store.read(name))
    except NotFound as error:
        raise Denied(_other_text(given, expected), name) from error
    try:
        found = orjson.loads(raw)
        version, recorded = found["format"], found["home"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("this is no mark of a second store", name) from error
    if version != FORMAT:
        raise NewerVersion("a newer program has offloaded this tier; upgrade this one", name)
    if recorded != home:
        raise Corrupt("another tier has its home here", name)


async def register_at_second_store(
    store: ObjectStore, home: str, nonce: str, *, where: str, is_new: bool
) -> None:
    """Register the owner of a tier at its second store, and refuse the owner of another copy.

    Each owner creates the same nonce in both stores, first in the tier's own, and deletes older
    ones, first in the second store. Undeletable ones are left to a later owner. A copy of the tier
    lacks the nonces of later owners of the original, and lies at another place. Two listings, two
    creates and two deletes.

    Args:
        store: both stores.
        home: of the tier in the second one.
        nonce: of this owner.
        where: place of the tier's first store, the content of the registration.
        is_new: accept this copy whatever is registered there. Other copies are refused from then
            on.

    Raises:
        Denied: another copy of the tier uses this second store, or cannot be unregistered
            (`is_new`).
        Unavailable: a store does not answer.
    """
    far_prefix = f"{parts_prefix(home)}{OWNER_PREFIX}"
    near = await _registered(store, OWNER_PREFIX)
    far = {one.name: one.name.removeprefix(far_prefix) for one in await store.list(far_prefix)}
    if not is_new:
        for name, other in far.items():
            place = bytes(await store.read(name)).decode(errors="replace").strip()
            if other not in near or place != where:
                raise Denied(_copy_text(place, where), name)
    own = {str(RegistrationName(nonce)): nonce, f"{far_prefix}{nonce}": nonce}
    for name in own:
        with suppress(AlreadyExists):
            await store.create(name, [f"{where}\n".encode()])
    older = [name for name in far if name not in own]
    try:
        await store.delete(older)
        # Not earlier: a registration whose nonce is not here belongs to another copy.
        names = [str(RegistrationName(one)) for one in near]
        await store.delete([name for name in names if name not in own])
    except (Denied, Unavailable):
        if is_new:
            raise  # those of other copies must be deleted


async def _registered(store: ObjectStore, prefix: str) -> set[str]:
    names = [RegistrationName.parse(one.name) for one in await store.list(prefix)]
    return {name.nonce for name in names if name is not None}


def _copy_text(place: str, where: str) -> str:
    return (
        f"the second store is in use by another copy of this tier, at {place}, and this one at "
        f"{where} would delete its messages: give each copy a second store of its own; if this is "
        f"the only copy that is left, or it was moved, use --new-tier once"
    )


def lacking_text(given: str) -> str:
    """Error text for a second store without any object of the tier."""
    return (
        f"the second store at {given} has nothing of this tier, so it is not what the tier was "
        f"offloaded to: is it another account, or a disk that is not mounted?"
    )


def _other_text(given: str, expected: str) -> str:
    if given == expected:
        return lacking_text(given)
    return (
        f"the second store at {given} is not that of this tier, whose messages were offloaded to "
        f"{expected}: set tieredStoreOffloadPath to that, or copy the objects first"
    )
