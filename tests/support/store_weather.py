"""What a simulated store's owners meet, and how they are set: drawn from the seed."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from container.names.tier_objects import INDEX_PREFIX
from container.options import UpkeepOptions
from provider.testing.faulty import Fault, FaultyObjectStore, Kind
from tests.support.store_harness import UPKEEP_OPTIONS

FAST_HOUR = 6_000.0
"""Speed of the wall clock at which an hour is over in less than a second."""
GRACE_S = (0.0, 0.4, 1.2)
NAPS_AT = (
    ("delete", ""),  # the ownership is verified, and the deletion not begun
    ("list", "@journal/"),  # the deletions are planned, and the ownership not verified
    ("create", "@journal/"),
    ("create", "@parts/"),
    ("create", "@manifest/"),
    ("create", INDEX_PREFIX),
    ("list", "@boundary/"),
    ("read", ""),
)
SLOW: tuple[Kind, ...] = ("delayed", "slow_reply")
NAPS_OF_SECOND = (("create", "@offload/"), ("read", ""), ("delete", ""), ("list", ""))
NAP_S_MAX = 2.5
OUTAGE = Fault("refused")
"""Of a store that does not answer for a while."""


class Settings(NamedTuple):
    """How all owners of one seed are set."""

    upkeep: UpkeepOptions
    by_age: bool
    """Whether messages expire by age, for which the wall clock is fast."""


def settings(rng: Random, *, expires: bool) -> Settings:
    """The settings of a seed."""
    by_age = expires and rng.random() < 0.5
    upkeep = replace(
        UPKEEP_OPTIONS,
        grace_s=0.0 if by_age else rng.choice(GRACE_S),
        scrubs=rng.random() < 0.3,
        scrub_interval_s=0.4,
        scrub_operations_max=12,
    )
    if rng.random() < 0.5:
        upkeep = replace(
            upkeep,
            offloads=True,
            offload_place="the second store",
            offload_topic_bytes=rng.choice([1, 1_500]),
            offload_lag_s=max(upkeep.grace_s, 0.0 if by_age else rng.choice([0.0, 0.5])),
            offload_interval_s=0.3,
        )
    if expires:
        upkeep = replace(
            upkeep,
            expires=True,
            retention_hours=1 if by_age else 10**6,
            topic_bytes_max=0 if by_age else rng.choice([600, 3_000]),
            expiry_interval_s=rng.choice([0.2, 0.7]),
        )
    return Settings(upkeep, by_age)


def faults_of(rng: Random, naps_at: Sequence[tuple[str, str]] = NAPS_AT) -> Sequence[Fault]:
    """What one owner meets at its requests; some sleep at requests of one kind."""
    often = rng.choice([0.0, 0.03, 0.1])
    faults: list[Fault] = []
    for verb, prefix in rng.sample(naps_at, rng.choice([0, 1, 2])):
        nap_s = rng.uniform(0.3, NAP_S_MAX)
        kind = rng.choice(SLOW)
        faults.append(Fault(kind, verb, prefix, rng.choice([0.1, 0.5]), delay_s=nap_s))
    faults += [
        Fault(kind, probability=often) for kind in ("lost_reply", "refused", "late", "short")
    ]
    faults += [Fault(kind, probability=often, delay_s=rng.choice([0.05, 0.7])) for kind in SLOW]
    slow, slow_s = rng.choice([(0.1, 0.004), (0.4, 0.03)])  # so that others come first
    faults.append(Fault("delayed", probability=slow, delay_s=slow_s))
    return faults


def toggle_outage(store: FaultyObjectStore) -> bool:
    """Take a store away from one owner, or give it back; whether it is away now."""
    others = [one for one in store.faults if one != OUTAGE]
    is_away = len(others) == len(store.faults)
    store.faults = [*others, OUTAGE] if is_away else others
    return is_away
