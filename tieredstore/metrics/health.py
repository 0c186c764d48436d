"""Whether a follower does its work. Pure."""

from tieredstore.metrics.moment import Moment


def unready_reason(moment: Moment) -> str:
    """Why messages do not reach the tier as they should, in one line; "" while they do.

    A queue that is stopped or damaged does not count: it never stops the others.
    """
    if moment.ends or not moment.is_owner:
        what = "it ends" if moment.ends else "the tier is no longer ours"
        return f"{what}: {moment.journal.last_error}"
    if moment.dispatch.outage:
        return f"nothing reaches the tier: {moment.dispatch.last_error}"
    if moment.dispatch.hot_error:
        return f"the store cannot be read: {moment.dispatch.hot_error}"
    if not moment.dispatch.started:
        return "it starts: not every queue of the store is compared with the tier yet"
    for one in moment.dispatch.waiting:
        if one.waits_long:
            return f"{one.waiting} messages of {one.queue} wait: {one.waits_for}"
    return f"upkeep fails: {moment.upkeep.last_error}" if moment.upkeep.last_error else ""
