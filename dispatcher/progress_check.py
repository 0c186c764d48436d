"""What holds of one queue's way into the tier at any time (`QueueProgress`, I1 to I4)."""

from dispatcher.queue_progress import QueueProgress
from dispatcher.queue_state import QueueState


def check_progress(queue: QueueProgress) -> None:
    """Assert I1 to I4 as far as one queue shows them. O(1)."""
    claimed, kept = queue.claimed, len(queue.references)
    assert queue.commit_offset <= queue.dispatch_offset <= queue.referenced_offset, f"I1: {queue}"
    assert (claimed is not None) == (queue.state is QueueState.IN_FLIGHT), f"I2: {queue}"
    if claimed is None:
        assert queue.dispatch_offset == queue.commit_offset, f"I2: {queue}"
    else:
        assert claimed.start == queue.commit_offset, f"I2: {queue} claimed {claimed.start}"
        assert claimed.end == queue.dispatch_offset, f"I2: {queue} claimed to {claimed.end}"
    assert kept == 0 or queue.is_active, f"I3: {queue} keeps {kept} references"
    if queue.state is QueueState.READY:
        assert queue.setback.retry_messages <= kept, f"I4: {queue} keeps {kept} references"
