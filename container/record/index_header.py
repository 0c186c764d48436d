"""How RocketMQ's sealed index files begin."""

from struct import Struct

INDEX_HEADER = Struct(">Iqqii")
"""Magic, begin and end timestamp, used slots, items; 28 bytes."""
