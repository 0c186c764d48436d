"""The text of `conf/broker.conf`: every key with its default, unit and meaning."""

from tieredstore.config.key import Key, Kind
from tieredstore.config.keys import SECTIONS

HEAD = """\
# Every setting of tieredstore with its default, in RocketMQ's properties format. The file of a
# RocketMQ broker can be used unchanged: keys of the same name have the same meaning, and keys that
# only the broker needs are ignored. Environment variables (TIEREDSTORE_BROKER_NAME for brokerName)
# override this file, and `-D key=value` overrides both.
"""


def config_template() -> str:
    """A configuration file with every key at its default."""
    lines = [HEAD]
    for title, keys in SECTIONS:
        lines.append(f"# ---- {title} ----\n")
        lines.extend(_lines(key) for key in keys)
    return "\n".join(lines)


def _lines(key: Key) -> str:
    unit = "" if key.kind is Kind.TEXT else f" [{key.unit_name}]"
    value = str(key.default).lower() if isinstance(key.default, bool) else key.default
    comment = "#" if key.is_machines or key.object_default is not None else ""
    other = ""
    if key.object_default is not None:
        other = f"# Default where the tier is in an object store: {key.object_default}\n"
    return f"# {key.meaning}{unit}\n{other}{comment}{key.name}={value}\n"
