"""Each oddity of a service: the right verdict, and a sentence that names the cure."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from threading import Thread
from typing import Any

import pytest
from obstore.store import S3Store

from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unauthorized, Unavailable
from provider.object.store import FsspecStore, open_object_store
from provider.ranges import ByteRange
from provider.s3 import client, file_system
from provider.s3.client import Clients, ListingFailed, parsed
from tests.support.odd_s3 import OddS3, Refusal

Call = Callable[[FsspecStore], Awaitable[object]]
CALLS: dict[str, Call] = {
    "create": lambda store: store.create("@parts/b", [b"body"]),
    "read": lambda store: store.read("@parts/a", ByteRange(0, 2)),
    "read whole": lambda store: store.read("@parts/a"),
    "size": lambda store: store.size("@parts/a"),
    "list": lambda store: store.list("@parts/"),
    "directories": lambda store: store.directories(),
    "delete": lambda store: store.delete(["@parts/a", "@parts/c"]),
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def serving(**oddities: Any) -> Iterator[OddS3]:
    with OddS3(**oddities) as server:
        server.objects["odd"] |= {"tier/@parts/a": b"12345", "tier/@parts/c": b"12345"}
        yield server


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., FsspecStore]]:
    stores: list[FsspecStore] = []

    def at(server: OddS3, bucket: str = "odd", **options: Any) -> FsspecStore:
        storage = {"endpoint": server.endpoint, "retries_max": 1, "retry_s_min": 0.001, **options}
        stores.append(open_object_store(f"s3://{bucket}/tier", storage=storage))
        return stores[-1]

    yield at
    for store in stores:
        await store.close()


async def refused(store: FsspecStore, call: Call) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await call(store)
    return caught.value


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "told",
    [
        (403, "AccessDenied", Unauthorized, "s3:"),
        (403, "RequestTimeTooSkewed", Unauthorized, "clock"),
        (400, "ExpiredToken", Unauthorized, "token"),
        (400, "ExpiredTokenException", Unauthorized, "token"),
        (403, "TokenExpired", Unauthorized, "token"),
        (400, "KMS.DisabledException", Unauthorized, "objectStoreKmsKeyId"),
        (403, "AccountProblem", Unauthorized, "account"),
        (403, "InvalidAccessKeyId", Unauthorized, "access key"),
        (403, "SignatureDoesNotMatch", Unauthorized, "AWS_SECRET_ACCESS_KEY"),
        (401, "", Unauthorized, "s3:"),
        (301, "PermanentRedirect", Denied, "AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", Denied, "objectStoreRegion"),
        (403, "SecondLevelDomainForbidden", Denied, "objectStoreAddressing"),
        (400, "InvalidArgument", Denied, "objectStore"),
        (405, "MethodNotAllowed", Denied, "objectStoreEndpoint"),
        (501, "NotImplemented", Denied, "objectStore"),
        (400, "RequestTimeout", Unavailable, "again"),
        (409, "OperationAborted", Unavailable, "again"),
        (400, "ThrottlingException", Unavailable, "again"),
        (400, "KMS.ThrottlingException", Unavailable, "again"),
        (403, "RequestLimitExceeded", Unavailable, "again"),
        (429, "TooManyRequests", Unavailable, "again"),
        (500, "InternalError", Unavailable, "trouble"),
        (503, "SlowDown", Unavailable, ""),
        (507, "XStorageFull", Unavailable, "trouble"),
    ],
)
async def test_status_and_code_decide(
    opened: Callable[..., FsspecStore],
    name: str,
    told: tuple[int, str, type[StoreError], str],
) -> None:
    status, code, verdict, cure = told
    with serving(refusals=[Refusal(status=status, code=code)]) as server:
        error = await refused(opened(server), CALLS[name])
    # A HEAD has no body, so no code: what a 400 or 403 is about is not known then.
    assert type(error) is verdict or (name == "size" and status in {400, 403}), error
    said = str(error)
    assert server.endpoint in said
    assert "'odd'" in said
    assert re.search(r"(Put|Get|Head|Delete)Object|ListObjectsV2", said), said
    assert cure in said or name == "size"
    assert "not answer in time" not in said


@pytest.mark.parametrize("name", CALLS)
async def test_a_bucket_that_is_not_there_is_denied_by_every_call(
    opened: Callable[..., FsspecStore], name: str
) -> None:
    with serving() as server:
        error = await refused(opened(server, "nobucket"), CALLS[name])
    assert type(error) is Denied
    assert "there is no bucket 'nobucket'" in str(error)


async def test_an_object_that_is_not_there_is_not_found(
    opened: Callable[..., FsspecStore],
) -> None:
    with serving() as server:
        store = opened(server)
        for call in (store.read("@parts/x"), store.size("@parts/x")):
            with pytest.raises(NotFound):
                await call
        await store.delete(["@parts/x"])


@pytest.mark.parametrize("redirects", [False, True])
async def test_the_right_region_is_named(
    opened: Callable[..., FsspecStore], *, redirects: bool
) -> None:
    with serving(region="eu-west-3", redirects=redirects) as server:
        error = await refused(opened(server), CALLS["list"])
        assert "in region 'eu-west-3', and requests are signed for 'us-east-1'" in str(error)
        assert len(await opened(server, region="eu-west-3").list("")) == 2


@pytest.mark.parametrize("status", [400, 501])
async def test_a_checksum_that_is_refused_can_be_left_out(
    opened: Callable[..., FsspecStore], status: int
) -> None:
    with serving(checksum_status=status) as server:
        error = await refused(opened(server), CALLS["create"])
        assert type(error) is Denied
        assert "objectStoreUploadChecksum=NONE" in str(error)
        await opened(server, upload_checksum="").create("@parts/b", [b"body"])
        assert server.objects["odd"]["tier/@parts/b"] == b"body"


async def test_the_host_may_carry_the_bucket(
    opened: Callable[..., FsspecStore],
) -> None:
    with serving(virtual_host="s3.example.test") as server:
        proxy = {"endpoint": "http://s3.example.test", "allow_http": True, "proxy": server.endpoint}
        error = await refused(opened(server, **proxy), CALLS["list"])
        assert "objectStoreAddressing=VIRTUAL" in str(error)
        store = opened(server, virtual_hosted=True, **proxy)
        await store.create("@parts/b", [b"body"])
        assert bytes(await store.read("@parts/b")) == b"body"
        assert len(await store.list("")) == 3
        await store.delete(["@parts/a", "@parts/b"])
        assert server.names() == ["tier/@parts/c"]
        assert server.seen[-1].host == "odd.s3.example.test"


async def test_an_endpoint_may_have_a_path(opened: Callable[..., FsspecStore]) -> None:
    with serving(endpoint_path="/s3/v1") as server:
        store = opened(server)
        await store.create("@parts/b", [b"body"])
        assert bytes(await store.read("@parts/b")) == b"body"
        assert len(await store.list("")) == 3
        await store.delete(["@parts/a", "@parts/b"])
        assert server.names() == ["tier/@parts/c"]


async def test_the_requester_can_pay(opened: Callable[..., FsspecStore]) -> None:
    with serving(requester_pays=True) as server:
        error = await refused(opened(server), CALLS["list"])
        assert "objectStoreRequesterPays=true" in str(error)
        store = opened(server, requester_pays=True)
        for call in CALLS.values():
            await call(store)


async def test_loopback_is_reached_without_a_proxy(
    opened: Callable[..., FsspecStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving() as server:
        for call in CALLS.values():
            await call(opened(server))


async def test_a_proxy_that_is_down_is_named(
    opened: Callable[..., FsspecStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:hidden@127.0.0.1:9")
    with serving() as server:
        far = {"endpoint": "http://s3.example.test", "allow_http": True}
        for name, call in CALLS.items():
            error = await refused(opened(server, **far), call)
            assert isinstance(error, Unavailable), name
            assert "through the proxy http://127.0.0.1:9 was refused" in str(error)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("endpoint", "verdict", "why"),
    [
        ("http://127.0.0.1:9", Unavailable, "was refused; check objectStoreEndpoint"),
        ("https://127.0.0.1:PORT", Denied, "the port answers without TLS"),
        ("https://s3.example.invalid", Unavailable, "the host is unknown"),
    ],
)
async def test_what_cannot_be_reached_is_named(
    opened: Callable[..., FsspecStore],
    name: str,
    endpoint: str,
    verdict: type[StoreError],
    why: str,
) -> None:
    with serving() as server:
        endpoint = endpoint.replace("PORT", str(server.port))
        error = await refused(opened(server, endpoint=endpoint), CALLS[name])
    assert type(error) is verdict, error
    assert why in str(error)
    assert endpoint in str(error)


@pytest.mark.parametrize("name", CALLS)
async def test_a_service_that_is_silent_is_told_as_that(
    opened: Callable[..., FsspecStore], name: str
) -> None:
    with serving(delay_s=0.6) as server:
        store = opened(server, attempt_s_max=0.2, quiet_s_max=0.2, retries_max=0)
        error = await refused(store, CALLS[name])
    assert type(error) is Unavailable, error
    assert "did not answer in time" in str(error)


async def test_a_reply_without_an_e_tag_is_no_reply_of_s3(
    opened: Callable[..., FsspecStore],
) -> None:
    with serving(e_tags=False) as server:
        error = await refused(opened(server), CALLS["create"])
    assert type(error) is Denied
    assert "ETag" in str(error)


async def test_a_service_that_ignores_ranges_is_refused(
    opened: Callable[..., FsspecStore],
) -> None:
    with serving(ranges=False) as server:
        assert type(await refused(opened(server), CALLS["read"])) is Denied


@pytest.mark.parametrize("tokens", ["missing", "repeated", "circle"])
async def test_a_listing_without_an_end_is_refused(
    opened: Callable[..., FsspecStore], tokens: str
) -> None:
    with serving(tokens=tokens, page_max=2) as server:
        server.objects["odd"] |= {f"tier/d{n}/x": b"" for n in range(7)}
        store = opened(server)
        for name in ("list", "directories"):
            call: Call = (lambda one: one.list("")) if name == "list" else CALLS[name]
            async with asyncio.timeout(20):
                error = await refused(store, call)
            assert type(error) is Denied, tokens
            assert "listing" in str(error)


async def test_pages_may_be_small_and_empty(opened: Callable[..., FsspecStore]) -> None:
    with serving(page_max=2, empty_pages=True) as server:
        server.objects["odd"] |= {f"tier/d{n}/x": b"" for n in range(7)}
        store = opened(server)
        assert len(await store.list("")) == 9
        assert len(await store.directories()) == 8
        assert await store.holds("d6/")
        assert [one.name for one in await store.list("", after="d4/x")] == ["d5/x", "d6/x"]


async def test_listings_share_threads(
    opened: Callable[..., FsspecStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread would double the CPU time of a listing, and each commit needs one."""
    begun, are_two = list[Thread](), asyncio.Event()

    class Counted(Thread):
        def start(self) -> None:
            begun.append(self)
            super().start()
            if len(begun) == 2:
                are_two.set()

    monkeypatch.setattr(client, "Thread", Counted)
    monkeypatch.setattr(client, "_IDLE", [])
    with serving() as server:
        store = opened(server)
        for _ in range(20):
            await store.list("")
        assert len(begun) == 1
        async with asyncio.TaskGroup() as group:
            with server.lock:  # it replies to neither
                for _ in range(2):
                    group.create_task(store.list(""))
                await are_two.wait()
        monkeypatch.setattr(client, "IDLE_MAX", 0)
        for _ in range(3):
            await store.list("")
    for thread in begun:
        thread.join()
    assert len(begun) == 3


STRANGE = (
    "tier/x//y",
    "tier/",
    "tier/@parts/",
    "tier/./y",
    "tier/../z",
    "tier/\x01q",
    "tier/a\x7fb",
    "tier/new\nline",
    "tier/back\\slash",
    "tier//",
    "tier/@parts//a",
    "tier/a b+c%2e/&<>'\"",
    "tier/" + "x" * 300,
    "tier2/x//y",
)


@pytest.mark.parametrize("stray", STRANGE)
async def test_foreign_keys_are_passed_over_and_named(
    opened: Callable[..., FsspecStore], stray: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server:
        server.objects["odd"][stray] = b"strange"
        store = opened(server)
        for _ in range(2):
            names = [one.name for one in await store.list("")]
            assert names[:2] == ["@parts/a", "@parts/c"]
            assert len(names) == 2 + (stray.startswith("tier/a b"))
            assert [one.name for one in await store.list("@parts/")] == names[:2]
            assert (await store.directories())[0] == "@parts"
            assert all("/" not in one for one in await store.directories())
    is_named = stray.startswith("tier/") and "a b" not in stray and not stray.endswith("/")
    assert ("which is no name of an object" in caplog.text) == is_named
    assert caplog.text.count("which is no name of an object") <= 1


async def test_a_service_without_bulk_deletion_deletes_one_by_one(
    opened: Callable[..., FsspecStore],
) -> None:
    with serving(bulk_delete=False) as server:
        store = opened(server)
        await store.delete(["@parts/a", "@parts/c"])
        assert server.names() == []
        assert server.counts == {"POST": 1, "DELETE": 2}
        await store.delete(["@parts/a", "@parts/c"])
        assert server.counts == {"POST": 1, "DELETE": 4}


@pytest.mark.parametrize("names", [["@parts/a"], ["@parts/a", "@parts/c"]])
async def test_a_denied_deletion_is_a_refusal_that_names_the_permission(
    opened: Callable[..., FsspecStore], names: list[str]
) -> None:
    with serving(undeletable="/a$") as server:
        with pytest.raises(Unauthorized) as caught:
            await opened(server).delete(names)
        assert "s3:DeleteObject" in str(caught.value)
        assert f"1 of {len(names)} objects are not deleted" in str(caught.value)
        assert server.names()[0] == "tier/@parts/a"
        assert ("tier/@parts/c" in server.names()) == (len(names) == 1)


async def test_a_create_whose_reply_is_lost_is_never_repeated(
    opened: Callable[..., FsspecStore],
) -> None:
    with serving(refusals=[Refusal(status=500, methods="PUT", acts=True)]) as server:
        store = opened(server)
        assert type(await refused(store, CALLS["create"])) is Unavailable
        server.odd.refusals.clear()
        with pytest.raises(AlreadyExists):
            await store.create("@parts/b", [b"body"])
        assert server.counts["PUT"] == 2


async def test_concurrent_first_calls_share_the_clients_of_a_bucket(
    opened: Callable[..., FsspecStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Clients] = []

    class Counted(Clients):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            made.append(self)

    stores = list[object]()

    def counted(*args: Any, **more: Any) -> S3Store:
        stores.append(None)
        return S3Store(*args, **more)

    monkeypatch.setattr(file_system, "Clients", Counted)
    monkeypatch.setattr(client, "S3Store", counted)
    with serving() as server:
        store = opened(server)
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(store.size("@parts/a"))
        assert len(made) == len(stores) == 1, "a reader needs one client"
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(store.create(f"@parts/{number}", [b"body"]))
    assert (len(made), len(stores)) == (1, 2)


AWS = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;{}&quot;</ETag><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
    "<ChecksumType>FULL_OBJECT</ChecksumType><Size>{}</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)
GO = AWS.replace("&quot;", "&#34;").replace("<Storage", "<Owner><ID>1</ID></Owner><Storage")
ODD = "<Contents>\n<Size>{2}</Size> <Key>{0}</Key><ETag>&#34;{1}&#34;</ETag></Contents>"
PAGE = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult'
    ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true</IsTruncated>{}'
    "<CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>"
    "<NextContinuationToken>next</NextContinuationToken></ListBucketResult>"
)
KEYS = ["a", "日志", "a&amp;b", "a&#x1;b", "&#38;quot;", "a\x01b", ""]


@pytest.mark.parametrize("forms", [[AWS], [GO], [ODD], [AWS, ODD], [AWS, GO], []])
@pytest.mark.parametrize("keys", [KEYS[:2], *([key, "z"] for key in KEYS)])
def test_objects_of_any_form_are_those_of_the_parser(forms: list[str], keys: list[str]) -> None:
    """Objects in AWS's form are taken without it."""
    numbered = enumerate(zip(cycle(forms), keys, strict=False)) if forms else ()
    objects = [form.format(key, n, 7 * n) for n, (form, key) in numbered]
    page = parsed(PAGE.format("".join(objects)).encode())
    slow = parsed(
        PAGE.format("<!-- -->".join(["", *objects])).replace("><Size", "> <Size").encode()
    )
    assert page == slow
    assert [one.size for one in page.objects] == [7 * n for n in range(len(objects))]
    assert (page.prefixes, page.next_token) == (["d/"], "next")


@pytest.mark.parametrize("body", [b"<Error/>", b"\xff", PAGE.format(AWS)[:-9].encode()])
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(ListingFailed):
        parsed(body)
