"""A tier of three brokers that have a topic in common."""

from pathlib import Path

from tests.support.cli import run
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker

CLUSTER = "C"
MESSAGES = {"east-1": 4, "east-2": 6, "west-1": 3}
"""Messages that each broker has in the queue Orders/0."""


def tier_of_three(root: Path) -> Path:
    """A tier of three brokers. Their messages alternate in store time; one has a topic alone."""
    for number, (name, count) in enumerate(MESSAGES.items()):
        broker = FakeBroker(root / name, now_ms=FIRST_STORE_TIMESTAMP + number)
        for one in range(count):
            broker.put("Orders", 0, f"{name}:{one}".encode(), keys="the-key", tags=name[:4])
            broker.now_ms += 10
        if name == "west-1":
            broker.put("Alone", 2, b"alone")
        run(*of_tier(root / "tier"), "-D", f"brokerName={name}", "tier", broker.directory)
    return root / "tier"


def of_tier(tier: Path) -> tuple[str, ...]:
    return ("--tier", str(tier), "-D", f"brokerClusterName={CLUSTER}")


def damage(tier: Path, broker: str) -> None:
    """Overwrite the journal of a broker."""
    for path in tier.glob(f"*/{broker}/@journal/**/*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
