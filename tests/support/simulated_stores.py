"""The memories of a simulated tier: of its first store, and of a second one if it offloads."""

from container.metadata.objects import home_of, mark_name
from container.metadata.state import TierState
from provider.stores.two_stores import TwoStores, is_offloaded
from provider.testing.memory import MemoryStore
from tests.support.watched_store import WatchedStore

OF_THE_JOURNAL = ("@journal/", "@snapshot/", "@boundary/", "@scrub/")


class SimulatedStores:
    """What all processes of one simulation share."""

    def __init__(self, *, offloads: bool) -> None:
        self.first = WatchedStore()
        self.second = MemoryStore() if offloads else None

    def another_client(self) -> TwoStores:
        """Both, without faults, as a reader has them."""
        second = None if self.second is None else self.second.another_client()
        return TwoStores(self.first.another_client(), second)

    def copy(self) -> list[dict[str, bytes]]:
        """What all stores hold at this moment."""
        return [
            {name: bytes(raw) for name, raw in store._shared.objects.items()}
            for store in self._stores()
        ]

    def put_back(self, copy: list[dict[str, bytes]]) -> None:
        """Replace all that the stores hold by an older copy, while nobody owns the tier."""
        for store, objects in zip(self._stores(), copy, strict=True):
            store._shared.objects.clear()
            store._shared.objects.update({name: bytearray(raw) for name, raw in objects.items()})
        self.first.forget_writers()

    def _stores(self) -> list[MemoryStore]:
        return [self.first] if self.second is None else [self.first, self.second]

    async def unreferenced(self, state: TierState) -> set[str]:
        """Objects of both stores that a state at rest does not refer to; all that it does exist.

        Names that are offloaded lie in the second store, and all others in the first.
        """
        names = {one.name for one in await self.first.list("")}
        away = set[str]()
        if self.second is not None:
            away = {one.name for one in await self.second.list("")}
        assert all(map(is_offloaded, away)), away
        assert not any(map(is_offloaded, names)), names
        names |= away
        known = {*state.parts, *state.index_files}
        known |= {ref.object_name for q in state.queues.values() for ref in q.manifests}
        assert state.parts_counted
        assert known <= names, f"referred to and gone: {known - names}"
        known.add(mark_name(home_of(state.attempts)))  # once anything was offloaded
        return {name for name in names - known if not name.startswith(OF_THE_JOURNAL)}
