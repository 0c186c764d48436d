"""Requests through a proxy: listings are sent by us, all others by the client library."""

import asyncio
import gc
import socket
from base64 import b64encode
from contextlib import suppress

import pytest
from obstore.exceptions import BaseError

from provider.s3.client import Clients, ListingFailed
from provider.s3.errors import EnvironmentCredentials
from provider.s3.options import S3Options

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
NAMED = b"Basic " + b64encode(b"us@er:se:cret")


def half_closed() -> set[int]:
    """Descriptors of closed sockets that a reply still holds open."""
    found = (one for one in gc.get_objects() if isinstance(one, socket.socket))
    return {one.fileno() for one in found if "[closed]" in repr(one)} - {-1}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_listings_name_the_user_of_a_proxy_as_reads_do(scheme: str) -> None:
    heads: list[bytes] = []
    before = half_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = S3Options(
            endpoint=f"{scheme}://storage.test",
            allow_http=True,
            proxy=f"http://us%40er:se%3Acret@127.0.0.1:{port}",
            retries_max=0,
        )
        keys = EnvironmentCredentials(KEYS)
        clients = await asyncio.to_thread(Clients, "bucket", options, credentials=keys)
        with suppress(BaseError, PermissionError):
            await clients.repeating.get_range_async("name", start=0, end=1)
        with suppress(ListingFailed):
            await clients.lister.page({"list-type": "2"})
        clients.close()
    assert half_closed() <= before
    named = [
        line.partition(b":")[2].strip()
        for head in heads
        for line in head.splitlines()
        if line.lower().startswith(b"proxy-authorization:")
    ]
    assert named == [NAMED, NAMED]
