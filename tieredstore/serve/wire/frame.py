"""RocketMQ's remoting protocol: codes, and frames of length, kind, header and body. Pure."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, Final, cast

import orjson

JSON: Final = 0
ROCKETMQ: Final = 1
RESPONSE: Final = 1
ONE_WAY: Final = 2
LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = (4 << 20) + (64 << 10)
"""Most bytes of a request: RocketMQ's largest message, and its header."""
PASSED_BYTES_MAX: Final = 16 << 20
"""Most bytes of a frame between a client and a broker, as in RocketMQ (`frameMaxLength`)."""
HEADER_BYTES_MAX: Final = 1 << 20
FIELDS_MAX: Final = 64
INT16_MAX: Final = 2**15 - 1
VERSION: Final = 479
"""Version that answers name, RocketMQ's V5_3_3. Clients decide by it what they may ask."""
LANGUAGES: Final[tuple[str, ...]] = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)  # fmt: skip
OTHER: Final = "OTHER"
_INT: Final = Struct(">i")
_SHORT: Final = Struct(">H")
_PREFIX: Final = Struct(">II")
_FIXED: Final = Struct(">hBhiii")
"""Of a ROCKETMQ header: code, language, version, opaque, flag, bytes of the remark."""


class RequestCode(IntEnum):
    """Requests that are answered or passed on, and those that the server sends."""

    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_BROKER_RUNTIME_INFO = 28
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    QUERY_CONSUME_QUEUE = 321
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    TIER_RANGES = 30501
    """Our own, of the plug-in for Java brokers; a code is an int16 in RocketMQ's serialisation."""


class ResponseCode(IntEnum):
    """Outcomes of a request."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207


class BadFrame(Exception):
    """The bytes are no frame, so the next one cannot be found: close the connection."""


@dataclass(slots=True)
class Command:
    """A request or a response."""

    code: int
    fields: dict[str, str]
    body: bytes = b""
    opaque: int = 0
    """Number by which the peer matches a response with its request."""
    flag: int = 0
    kind: int = JSON
    """Serialisation of the header."""
    remark: str | None = None
    version: int = VERSION
    language: str = OTHER

    @property
    def is_response(self) -> bool:
        """Whether it answers a request of this side."""
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether no response is wanted, not even that of a failure."""
        return bool(self.flag & ONE_WAY)


def frame_bytes(
    data: bytes | bytearray, at: int = 0, bytes_max: int = FRAME_BYTES_MAX
) -> int | None:
    """Return the length of the frame at `at`, its length field included; None if that is cut.

    Raises:
        BadFrame: no frame has that length.
    """
    if len(data) - at < LENGTH_BYTES:
        return None
    (size,) = _INT.unpack_from(data, at)
    if not LENGTH_BYTES < size <= bytes_max:
        raise BadFrame(f"a frame of {size} bytes; the most are {bytes_max}")
    return LENGTH_BYTES + size


def decode(frame: bytes) -> Command:
    """Decode a whole frame with its length field.

    Raises:
        BadFrame: it contradicts the protocol.
    """
    try:
        (word,) = _INT.unpack_from(frame, LENGTH_BYTES)
        kind, begin = word >> 24 & 0xFF, 2 * LENGTH_BYTES
        end = begin + (word & 0xFFFFFF)
        if end > len(frame) or end - begin > HEADER_BYTES_MAX:
            raise BadFrame(f"a header of {end - begin} bytes in a frame of {len(frame)}")
        if kind == JSON:
            return _from_json(frame[begin:end], frame[end:])
        if kind == ROCKETMQ:
            return _from_binary(frame[begin:end], frame[end:])
    except (struct.error, ValueError) as error:
        raise BadFrame(f"the header cannot be decoded: {error}") from error
    raise BadFrame(f"there is no serialisation {kind}")


def encode(command: Command, body_bytes: int = 0) -> bytes:
    """Encode a command as a frame, but for its body, which has `body_bytes` and follows it."""
    if command.kind == JSON:
        header = orjson.dumps(
            {
                "code": command.code,
                "extFields": command.fields,
                "flag": command.flag,
                "language": command.language,
                "opaque": command.opaque,
                "remark": command.remark,
                "serializeTypeCurrentRPC": "JSON",
                "version": command.version,
            }
        )
    else:
        header = _to_binary(command)
    size = LENGTH_BYTES + len(header) + body_bytes
    return _PREFIX.pack(size, command.kind << 24 | len(header)) + header


def _from_json(header: bytes, body: bytes) -> Command:
    parsed: object = orjson.loads(header)
    if not isinstance(parsed, dict):
        raise BadFrame("the header is no object")
    head = cast("dict[str, Any]", parsed)
    pairs = cast("object", head.get("extFields") or {})
    if not isinstance(pairs, dict) or len(named := cast("dict[str, object]", pairs)) > FIELDS_MAX:
        raise BadFrame(f"extFields is no object of at most {FIELDS_MAX} fields")
    fields = {name: _text(value) for name, value in named.items() if value is not None}
    remark, language = head.get("remark"), head.get("language")
    return Command(
        _int32(head, "code"),
        fields,
        body,
        _int32(head, "opaque"),
        _int32(head, "flag"),
        JSON,
        remark if isinstance(remark, str) else None,
        _int32(head, "version"),
        language if language in LANGUAGES else OTHER,
    )


def _int32(head: dict[str, Any], name: str) -> int:
    value = head.get(name, 0 if name in {"flag", "version"} else None)
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise BadFrame(f"{name} is no 32-bit number")
    return value


def _text(value: object) -> str:
    """Return a field as text: clients of other languages send numbers and booleans."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise BadFrame("a field is neither text nor a number")


def _from_binary(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
    at = _FIXED.size
    remark, at = _slice(header, at, remark_bytes)
    (pairs_bytes,) = _INT.unpack_from(header, at)
    pairs, end = _slice(header, at + _INT.size, pairs_bytes)
    if end != len(header):
        raise BadFrame("the header is longer than its fields")
    fields: dict[str, str] = {}
    at = 0
    while at < len(pairs):
        (size,) = _SHORT.unpack_from(pairs, at)
        name, at = _slice(pairs, at + _SHORT.size, size)
        (size,) = _INT.unpack_from(pairs, at)
        value, at = _slice(pairs, at + _INT.size, size)
        fields[name.decode()] = value.decode()
        if len(fields) > FIELDS_MAX:
            raise BadFrame(f"more than {FIELDS_MAX} fields")
    number = int(language)
    name_of_language = LANGUAGES[number] if number < len(LANGUAGES) else OTHER
    text = remark.decode() or None
    return Command(code, fields, body, opaque, flag, ROCKETMQ, text, version, name_of_language)


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    """Return `size` bytes at `at`, and the position after them."""
    end = at + size
    if size < 0 or end > len(data):
        raise BadFrame(f"a part of {size} bytes at {at} of {len(data)}")
    return data[at:end], end


def _to_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    pairs = bytearray()
    for name, value in command.fields.items():
        raw_name, raw_value = name.encode(), value.encode()
        pairs += _SHORT.pack(len(raw_name)) + raw_name + _INT.pack(len(raw_value)) + raw_value
    fixed = _FIXED.pack(
        command.code,
        LANGUAGES.index(command.language),
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((fixed, remark, _INT.pack(len(pairs)), pairs))
