"""Subscriptions by tag: what they mean, and which messages they take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.properties import tag_hash
from fetcher.tag_filter import matching, parse_subscription


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_these_subscriptions_mean_every_message(expression: str | None) -> None:
    assert parse_subscription(expression) is None


def test_pieces_are_trimmed_and_empty_ones_dropped() -> None:
    wanted = parse_subscription(" TagA ||  || 订单||TagA")
    assert wanted is not None
    assert wanted.tags == {"TagA", "订单"}
    assert wanted.hashes == {2598919, tag_hash("订单")}


def test_a_subscription_without_a_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="no tag"):
        parse_subscription(" || ")


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "a > 3",
            "a = 'x'",
            "TagA || b >= 2",
            "TAGS IS NOT NULL AND a",
            "NOT a",
            "a IS NULL or b",
        ),
        *(
            "TAGS is not null",
            "a Is Null",
            "TAGS in ('a', 'b')",
            "a between 1 and 2",
            "a like 'x%'",
        ),
    ],
)
def test_an_sql92_filter_is_refused_and_not_a_tag_that_nobody_has(expression: str) -> None:
    with pytest.raises(ValueError, match="SQL92"):
        parse_subscription(expression)


@given(st.lists(st.sampled_from(["", "A", "B", "polygenelubricants", "😀"])), st.data())
def test_a_message_matches_if_its_tag_is_named(tags: list[str], data: st.DataObject) -> None:
    named = data.draw(st.sets(st.sampled_from(["A", "B", "polygenelubricants", "😀"]), min_size=1))
    wanted = parse_subscription("||".join(named))
    assert wanted is not None
    hashes = np.array([tag_hash(tag) for tag in tags], np.int32)
    assert matching(hashes, wanted).tolist() == [tag in named for tag in tags]


@pytest.mark.parametrize(
    "tag", ["rock and roll", "made in Japan", "not now", "between us", "is it"]
)
def test_a_tag_of_several_words_is_a_tag(tag: str) -> None:
    subscription = parse_subscription(tag)
    assert subscription is not None
    assert subscription.tags == {tag}
