"""The text of `conf/broker.conf`: every key with its default, unit and meaning."""

from tieredstore.config.key import Key, Kind
from tieredstore.config.keys import SECTIONS

HEAD = """\
# Every setting of tieredstore, in RocketMQ's properties format. A RocketMQ broker's own file can be
# used as it is: what has the same name has the same meaning, and what only the broker needs is not
# looked at. The environment (TIEREDSTORE_BROKER_NAME for brokerName) and `-D key=value` win over
# this file. Lines that begin with # are comments; a value as it stands here is the default.
"""


def config_template() -> str:
    """A configuration with every key; used as it is, it changes nothing."""
    lines = [HEAD]
    for title, keys in SECTIONS:
        lines.append(f"# ---- {title} ----\n")
        lines.extend(_lines(key) for key in keys)
    return "\n".join(lines)


def _lines(key: Key) -> str:
    unit = "" if key.kind is Kind.TEXT else f" [{key.unit_name}]"
    value = str(key.default).lower() if isinstance(key.default, bool) else key.default
    comment = "#" if key.is_machines else ""
    return f"# {key.meaning}{unit}\n{comment}{key.name}={value}\n"
