"""Whether the references to parts are counted right: an object that is counted too low is lost."""

from collections import Counter
from collections.abc import AsyncIterator

from container.check.finding import Finding
from container.check.refreshing import LOOKS_MAX, take_newer
from container.metadata.part_counts import references, references_of
from container.metadata.state import TierState
from container.queue.manifest import ManifestReader
from container.tier_view import TierView
from provider.errors import Corrupt, Denied, OutOfRange

PART_COUNT = "part-count"


async def check_parts(tier: TierView) -> AsyncIterator[Finding]:
    """Yield parts that are counted otherwise than a recount says. One request per manifest.

    Nothing where segments are files, or an older program wrote the tier. What changes while it is
    counted is counted again; a tier that changes all the time is not told of.
    """
    manifests = ManifestReader(tier.store)
    for _ in range(LOOKS_MAX):
        state = tier.state.copy()
        if not state.parts_counted or not state.parts:
            return
        try:
            wanted = await _recounted(state, manifests)
        except (Corrupt, Denied, OutOfRange):
            return  # it was told of the queue
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
