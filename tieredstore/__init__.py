"""Unlimited history for RocketMQ on cheap storage: read a tier, or tier a broker's store.

Read a queue:

    import tieredstore

    async with tieredstore.open("tier") as tier:
        print(tier.topics())
        async for message in tier.messages("G_Orders", 0):
            print(message.offset, message.tags, message.body)

The same without `await`, in notebooks and scripts:

    with tieredstore.sync.open("tier") as tier:  # import tieredstore.sync
        for message in tier.messages("G_Orders", 0):
            print(message.offset, message.tags, message.body)

Tier what a broker wrote, then what it writes:

    async with tieredstore.follow("/var/rocketmq/store", "tier", conf="broker.conf") as follower:
        await follower.drain()
        await follower.run()

Keep messages of your own, with the same tier below:

    async with tieredstore.open_store("store", "tier", broker="broker-a") as store:
        await store.put_message(tieredstore.NewMessage("Orders", 0, b"..."))

`help(tieredstore.NAME)` documents each public name. A name is loaded when it is first used. Names
that are not listed here are internal and may change. The public names by purpose:
"""

import os
from importlib import import_module

from tieredstore.layers import refuse_intruders
from tieredstore.version import VERSION

__version__ = VERSION

refuse_intruders(os.path.dirname(__path__[0]))  # noqa: PTH120 - pathlib would come too early


def _public_names() -> tuple[dict[str, str], str]:
    """Modules of the public names, and the names by purpose as text, from the stub."""
    homes: dict[str, str] = {}
    text = ""
    stub = os.path.join(__path__[0], "__init__.pyi")  # noqa: PTH118 - likewise
    for line in __spec__.loader.get_data(stub).decode().splitlines():  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue] - a file or a zip
        if line.startswith("from "):
            _, home, _, name, *_ = line.split()
            homes[name] = home
            text += f" {name}"
        elif line.startswith("# ") and line.endswith(":"):
            text += f"\n    {line[2:]}"
    return homes, text


_HOMES, _names = _public_names()
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] - checkers read the stub
__doc__ = f"{__doc__}{_names}\n"


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tieredstore' has no attribute {name!r}")
    if home == __name__:
        return import_module(f"{home}.{name}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not, without the modules below that are loaded."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
