"""A store whose creates are settled as the journal and the parts settle theirs, for any weather."""

from collections.abc import Sequence

from provider.errors import AlreadyExists, NotFound, Unavailable
from provider.object_store import Buffer, ForwardingStore

TRIES_MAX = 20


class SettlingStore(ForwardingStore):
    """Repeats a create of unknown outcome; bytes tell whether what has the name is ours (P9)."""

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        body = b"".join(buffers)
        is_unclear = False
        for left in reversed(range(TRIES_MAX)):
            try:
                await self.inner.create(name, [body])
            except Unavailable:
                is_unclear = True
                if not left:
                    raise
            except AlreadyExists:
                if is_unclear and await self._is_ours(name, body):
                    return
                raise
            else:
                return

    async def _is_ours(self, name: str, body: bytes) -> bool:
        try:
            return bytes(await self.inner.read(name)) == body
        except NotFound:
            return False
