"""Where a scrubber stopped, in one small object, so that the next run goes on there.

Objects are never changed: each run makes the next number and deletes the ones below. Of two runs at
once the second to end finds its number taken, and says so. A mark that is damaged, or missing, only
lets a round begin again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import orjson

from container.names.tier_objects import SCRUB_PREFIX, ScrubName
from provider.errors import NotFound
from provider.object_store import ObjectStore

UNCLAIMED_MAX = 10_000
"""Objects that nothing refers to whose first sight is remembered, about 100 bytes each."""


class ScrubPlace(NamedTuple):
    """The last piece of work that was done; work is done in the order of these."""

    phase: int = 0
    """0: segments of queues; 1: index files; 2: what lies in storage, which ends a round."""
    name: str = ""
    """The topic, or the index file."""
    queue_id: int = -1
    type: int = -1
    base: int = -1
    """Of the segment that was read last; -1 before the first of a flat file."""


@dataclass(frozen=True, slots=True)
class ScrubMark:
    """What one run leaves to the next."""

    number: int = 0
    """Which run it was, from 1; 0: there was none."""
    round: int = 1
    """How often everything was begun."""
    place: ScrubPlace = field(default_factory=ScrubPlace)
    began_ms: int = 0
    """When the round began, Unix ms; 0: it has not."""
    findings: int = 0
    """Of the round so far."""
    unclaimed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Objects that nothing referred to at the end of the last round: when each was seen first."""

    def encode(self) -> bytes:
        """JSON; the fields by name, the place as an array."""
        return orjson.dumps({**asdict(self), "place": list(self.place)})

    @classmethod
    def decode(cls, raw: bytes, name: ScrubName) -> Self:
        """Read a mark; one that cannot be read is that of a run which left nothing."""
        begun = cls(name.number)
        try:
            found: Any = orjson.loads(raw)
            place: Any = found["place"]
            numbers: list[Any] = [found[one] for one in ("number", "round", "began_ms", "findings")]
            unclaimed: dict[str, Any] = dict(found["unclaimed"])
            numbers += [*unclaimed.values(), place[0], *place[2:]]
            is_sound = (
                len(place) == len(ScrubPlace())
                and isinstance(place[1], str)
                and all(isinstance(one, int) for one in numbers)
                and found["number"] == name.number
            )
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError):
            return begun
        if not is_sound:
            return begun
        _, the_round, began_ms, findings, *_ = numbers
        return cls(name.number, the_round, ScrubPlace(*place), began_ms, findings, unclaimed)


async def read_mark(store: ObjectStore) -> ScrubMark:
    """The newest mark. A listing of few names, and one request."""
    names = await _names(store)
    if not names:
        return ScrubMark()
    try:
        raw = await store.read(str(names[-1]))
    except NotFound:  # a run that ended now has replaced it
        return ScrubMark(names[-1].number)
    return ScrubMark.decode(bytes(raw), names[-1])


async def write_mark(store: ObjectStore, mark: ScrubMark) -> None:
    """Leave a mark, whose number is the one behind the last, and delete the older ones.

    Raises:
        AlreadyExists: another run ended meanwhile.
        Denied: the storage allows no writing.
        Unavailable: unknown outcome; the next run goes on from this mark or the one before.
    """
    name = ScrubName(mark.number)
    await store.create(str(name), [mark.encode()])
    older = [str(one) for one in await _names(store) if one < name]
    if older:
        await store.delete(older)


async def _names(store: ObjectStore) -> list[ScrubName]:
    listed = [ScrubName.parse(entry.name) for entry in await store.list(SCRUB_PREFIX)]
    return sorted(name for name in listed if name is not None)
