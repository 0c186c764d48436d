"""What follows each error, and which queue a failed round is blamed on."""

import pytest

from container.errors import BytesMissing, NewerVersion, Refused
from container.names.queue_id import QueueId
from dispatcher.error_policy import (
    Reaction,
    reaction_to_reading,
    reaction_to_tiering,
    refusal_sentence,
    refused_queue,
)
from provider.errors import (
    AlreadyExists,
    Closed,
    Corrupt,
    Denied,
    Fenced,
    NotFound,
    OutOfRange,
    StoreError,
    Unavailable,
)
from provider.ranges import QueueOffset
from tests.support.memory_tier import memory_plan

A, B = QueueId("Orders", 0), QueueId("Orders", 1)
PLANS = [memory_plan(queue, QueueOffset(0), [b"x"]) for queue in (A, B)]


@pytest.mark.parametrize(
    ("kind", "reading", "tiering"),
    [
        (Fenced, Reaction.END, Reaction.END),
        (Closed, Reaction.END, Reaction.END),
        (Unavailable, Reaction.RETRY, Reaction.RETRY),
        (Denied, Reaction.RETRY, Reaction.RETRY),
        (OutOfRange, Reaction.REOPEN, Reaction.REST),
        (NotFound, Reaction.REOPEN, Reaction.REST),
        (BytesMissing, Reaction.REOPEN, Reaction.REST),
        (AlreadyExists, Reaction.HALT, Reaction.REST),
        (Refused, Reaction.HALT, Reaction.REST),
        (Corrupt, Reaction.HALT, Reaction.HALT),
        (NewerVersion, Reaction.HALT, Reaction.HALT),
        (StoreError, Reaction.HALT, Reaction.HALT),
    ],
)
def test_every_error_has_its_reaction(
    kind: type[StoreError], reading: Reaction, tiering: Reaction
) -> None:
    error = kind("injected", "Orders/0", 7)
    assert (reaction_to_reading(error), reaction_to_tiering(error)) == (reading, tiering)


def test_a_round_is_blamed_on_the_queue_that_the_path_names() -> None:
    assert refused_queue(PLANS, Refused("awaits its deletion", "Orders/1")) == B
    assert refused_queue(PLANS, NotFound("no such object", "Orders/1/COMMIT_LOG/0")) == B
    assert refused_queue(PLANS, NotFound("no such object", "Orders/11/COMMIT_LOG/0")) is None


def test_a_round_of_one_queue_is_blamed_on_it_unless_the_error_passes() -> None:
    assert refused_queue(PLANS[:1], Corrupt("torn", "@manifest/7")) == A
    assert refused_queue(PLANS[:1], Unavailable("busy", "Orders/0")) is None
    assert refused_queue(PLANS[:1], Denied("not allowed", "Orders/0")) is None


def test_missing_bytes_are_told_with_what_to_do() -> None:
    sentence = refusal_sentence(BytesMissing("no such object", "Orders/0/COMMIT_LOG/0", 9))
    assert "Orders/0/COMMIT_LOG/0 at 9" in sentence
    assert "bring the file back" in sentence
