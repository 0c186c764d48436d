"""Whether what a queue was judged by still stands. Pure."""

from container.metadata.records import Queue


def still_stands(judged: Queue, now: Queue | None) -> bool:
    """Whether all bytes that `judged` speaks of are still published where it says.

    Commits, gaps at the end and sealing change nothing of them. A cut, a trim, a merged manifest
    and the end of the queue may.
    """
    return (
        now is not None
        and now.generation == judged.generation
        and now.manifests == judged.manifests
        and now.min_offset == judged.min_offset
    )
