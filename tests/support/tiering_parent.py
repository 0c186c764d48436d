"""A store with a tiering process, to be killed: `python -m tests.support.tiering_parent ROOT`.

Prints the number of the tiering process, then the end of the queue after each acknowledged call.
"""

import asyncio
import sys
from pathlib import Path

from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.hot_log import HotLog
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.store.child.process import TieringProcess
from tieredstore.store.configured import open_store
from tieredstore.store.tiered import TieredMessageStore

SETTINGS: dict[str, object] = {
    "brokerClusterName": "C",
    "brokerName": "b",
    "tieredStoreGroupCommitTimeout": 0,
    "tieredStoreShutdownTimeout": 60_000,
}
HOT = HotWriteOptions(commit_log_bytes=64 << 10, consume_queue_bytes=2_000)
"""Files that some hundred messages fill."""
GREEDY = RetentionOptions(reserved_s=0, disk_clean_ratio=1e-9, files_max=100, interval_s=0.05)
"""Each file is deleted as soon as it is tiered."""
TOPIC = "Orders"


def body_of(offset: int) -> bytes:
    """The body of one message."""
    return b"%d:" % offset * 20


def message_of(offset: int) -> NewMessage:
    """One message."""
    return NewMessage(TOPIC, 0, body_of(offset), {"KEYS": f"key-{offset}"})


def new_store(root: Path, *, durable: bool = False) -> TieredMessageStore:
    """The store below `root`, not open yet."""
    found = open_store(
        root / "store",
        root / "tier",
        settings=SETTINGS,
        hot=HOT,
        retention=GREEDY,
        durable=durable,
        process="own",
    )
    assert isinstance(found, TieredMessageStore)
    return found


def side_of(store: TieredMessageStore) -> TieringProcess:
    """Its tiering process."""
    side = store._reads.cold  # pyright: ignore[reportPrivateUsage] - the store has no other face
    assert isinstance(side, TieringProcess)
    return side


async def put_forever(store: TieredMessageStore, log: HotLog) -> None:
    """Put messages and print each end that was acknowledged."""
    end = await store.max_offset(TOPIC, 0)
    while not log.root.with_name("stop").exists():
        for _ in range(20):
            await store.put_message(message_of(end))
            end += 1
            sys.stdout.write(f"{end}\n")
        sys.stdout.flush()
        await asyncio.sleep(0.001)


async def main() -> None:
    """Put until the process is killed, or a file `stop` is there."""
    async with new_store(Path(sys.argv[1])) as store:
        print(side_of(store).pid, flush=True)
        await put_forever(store, store.log)


if __name__ == "__main__":
    asyncio.run(main())
