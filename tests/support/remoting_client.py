"""A client of RocketMQ's remoting protocol: one connection, answers matched by their number."""

import asyncio
import ssl
from base64 import b64encode
from typing import Any, Self

import orjson

from tieredstore.serve.wire.frame import (
    JSON,
    ONE_WAY,
    RESPONSE,
    Command,
    RequestCode,
    ResponseCode,
    decode,
    encode,
    frame_bytes,
)
from tieredstore.serve.wire.security import signature


class RemotingClient:
    """Use it as `async with await RemotingClient.connect(port)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: int):
        self.reader, self.writer, self.kind = reader, writer, kind
        self.told: list[Command] = []
        """Requests of the server."""
        self.account: tuple[str, str] | None = None
        self._opaque = 0

    @classmethod
    async def connect(
        cls,
        address: str,
        kind: int = JSON,
        *,
        tls: ssl.SSLContext | None = None,
        account: tuple[str, str] | None = None,
    ) -> Self:
        """A client by TLS, if given, that signs by an access key and its secret, if given."""
        host, port = address.rsplit(":", 1)
        one = cls(*await asyncio.open_connection(host, int(port), ssl=tls), kind)
        one.account = account
        return one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(
        self, code: int, body: bytes | dict[str, Any] = b"", *, one_way: bool = False, **fields: Any
    ) -> int:
        """Write a request; its number."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        self._opaque += 1
        texts = {name: str(value) for name, value in fields.items()}
        flag = ONE_WAY if one_way else 0
        request = Command(code, texts, raw, self._opaque, flag, self.kind)
        if self.account is not None:
            texts["AccessKey"], secret = self.account
            texts["Signature"] = b64encode(signature(secret.encode(), request)).decode()
        self.writer.write(encode(request, len(raw)) + raw)
        return self._opaque

    async def ask(self, code: int, body: bytes | dict[str, Any] = b"", **fields: Any) -> Command:
        """Write a request; its answer."""
        return await self.answer(self.send(code, body, **fields))

    async def answer(self, opaque: int) -> Command:
        while True:
            found = await self.read()
            if found.is_response and found.opaque == opaque:
                return found
            self.told.append(found)

    async def read(self) -> Command:
        head = await self.reader.readexactly(4)
        frame = head + await self.reader.readexactly(int.from_bytes(head, "big"))
        return decode(frame)

    def reply(self, request: Command, body: bytes = b"", code: int = 0, remark: str = "") -> None:
        """Write the answer to a request of the server."""
        answer = Command(code, {}, opaque=request.opaque, flag=RESPONSE, kind=self.kind)
        answer.remark = remark
        self.writer.write(encode(answer, len(body)) + body)

    async def pull(self, topic: str, queue_id: int, offset: int, **more: Any) -> Command:
        """A pull with the subscription `*` that does not wait, unless `more` says otherwise."""
        return await self.answer(self.send_pull(topic, queue_id, offset, **more))

    def send_pull(self, topic: str, queue_id: int, offset: int, **more: Any) -> int:
        return self.send(RequestCode.PULL_MESSAGE, **(pull_fields(topic, queue_id, offset) | more))

    async def beat(self, client: str, group: str, *topics: str, model: str = "CLUSTERING") -> None:
        """A heartbeat of a consumer."""
        subscriptions = [{"topic": one, "subString": "*", "subVersion": 1} for one in topics]
        data = {
            "groupName": group,
            "messageModel": model,
            "consumeType": "CONSUME_PASSIVELY",
            "subscriptionDataSet": subscriptions,
        }
        body = {"clientID": client, "consumerDataSet": [data]}
        answer = await self.ask(RequestCode.HEART_BEAT, body)
        assert answer.code == ResponseCode.SUCCESS, answer


def pull_fields(topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    """A pull of 32 messages with the subscription `*` that does not wait."""
    return {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }


def frames_of(data: bytes) -> list[bytes]:
    """The whole frames of a stream."""
    found, at = list[bytes](), 0
    while (size := frame_bytes(data, at)) is not None and at + size <= len(data):
        found.append(data[at : at + size])
        at += size
    return found
