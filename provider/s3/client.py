"""Clients of one bucket: obstore's, and an own client for listings with additional checks.

Also handles a fork and the interpreter's exit.
"""

import asyncio
import atexit
import errno
import hashlib
import hmac
import http.client
import os
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from traceback import clear_frames
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote, unquote_plus, urlsplit
from weakref import finalize
from xml.etree import ElementTree

from obstore.store import S3Store

from provider.clock import SystemClock
from provider.s3.errors import (
    ChainCredentials,
    Credential,
    Failure,
    Place,
    Trouble,
    reply_of,
    sendable,
)
from provider.s3.options import (
    S3Options,
    bucket_url,
    endpoint_of,
    is_sendable,
    proxy_for,
    proxy_of,
    region_of,
)

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_EMPTY: Final = hashlib.sha256(b"").hexdigest()


def query_text(parameters: Mapping[str, str]) -> str:
    """Encode a query as sent and signed: sorted by name, all but unreserved bytes escaped. Pure."""
    pairs = sorted(
        (quote(name, safe=""), quote(value, safe="")) for name, value in parameters.items()
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(
    url: str,
    query: str,
    *,
    region: str,
    key: str,
    secret: str,
    token: str = "",
    more: Mapping[str, str] | None = None,
    now: datetime,
) -> dict[str, str]:
    """Return the headers of `GET url?query`, signed for S3 with all of `more`. `now` is UTC."""
    parts = urlsplit(url)
    time, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {
        "host": parts.netloc,
        "x-amz-content-sha256": _EMPTY,
        "x-amz-date": time,
        **({"x-amz-security-token": token} if token else {}),
        **(more or {}),
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"GET\n{parts.path or '/'}\n{query}\n{lines}\n{names}\n{_EMPTY}"
    scope = f"{day}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    signing = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    signature = hmac.digest(signing, f"{_ALGORITHM}\n{time}\n{scope}\n{digest}".encode(), "sha256")
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={key}/{scope}, SignedHeaders={names}, Signature={signature.hex()}"
    )
    return headers


ResultT = TypeVar("ResultT")
BODY_BYTES_MAX: Final = 32 << 20
"""Longest body in bytes. A page of 1,000 keys of 1,024 escaped bytes has 4 MiB."""
_CONTROL: Final = re.compile(rb"&#([xX][0-9a-fA-F]{1,8}|[0-9]{1,9});|[\x00-\x1f]")
_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


class ListingFailed(Exception):
    """Failed request for a page; `failure` has the cause."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Listed(NamedTuple):
    """Object of a page."""

    key: str
    size: int
    e_tag: str
    modified: str
    """Text of the service, such as `2026-01-01T00:00:00.000Z`."""


@dataclass(frozen=True, slots=True)
class Page:
    """Page of a listing."""

    objects: list[Listed]
    prefixes: list[str]
    """Common prefixes, with the delimiter."""
    next_token: str
    """Token of the next page; empty on the last page."""


class BucketLister:
    """Client for listings of one bucket, with persistent connections. Loop- and thread-safe."""

    def __init__(
        self,
        url: str,
        options: S3Options,
        *,
        region: str,
        credentials: Callable[[], Credential],
        proxy: tuple[str, str],
        trusted: str,
    ) -> None:
        """Create a client of the bucket at `url`. `trusted` has additional certificates (PEM)."""
        self._url = url
        self._options = options
        self._region = region
        self._credentials = credentials
        self._proxy = proxy_for(url, *proxy)
        self._trusted = trusted
        self._context: ssl.SSLContext | None = None
        self._idle: list[http.client.HTTPConnection] = []
        finalize(self, _close_all, self._idle)
        self._lock = Lock()
        self._is_signed = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in _TRUE

    async def page(self, parameters: Mapping[str, str]) -> Page:
        """Request a page. One request, and retries while the service is busy or connections break.

        Raises:
            ListingFailed: the request is refused, or has no valid reply.
            NoCredentials: there are none.
        """
        for attempt in range(self._options.retries_max + 1):
            try:
                return await self._tried(parameters)
            except ListingFailed as error:
                failure = error.failure
                passes = failure.status in _AGAIN or failure.trouble in {"broken", "refused"}
                if not passes or attempt == self._options.retries_max:
                    raise
            await SystemClock().sleep(self._options.retry_s_min * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _tried(self, parameters: Mapping[str, str]) -> Page:
        status, body = await self._ask(query_text(parameters))
        if status != HTTPStatus.OK:
            raise ListingFailed(reply_of(status, body.decode(errors="replace")))
        return parsed(body)

    def close(self) -> None:
        """Drop the idle connections."""
        with self._lock:
            _close_all(self._idle)

    async def _ask(self, query: str) -> tuple[int, bytes]:
        """Send one request from a thread. Cancelling closes its connection."""
        used: list[http.client.HTTPConnection] = []
        try:
            return await _in_daemon(lambda: self._exchange(query, used))
        except asyncio.CancelledError:
            for connection in used:
                _break(connection)
            raise

    def _exchange(self, query: str, used: list[http.client.HTTPConnection]) -> tuple[int, bytes]:
        headers = self._headers(query)
        if urlsplit(self._url).scheme == "http":  # else the proxy sees the tunnel's alone
            headers |= _credentials_for(self._proxy)
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            is_new = connection is None
            connection = connection or self._connection()
            used[:] = [connection]
            try:
                connection.request("GET", self._target(query), headers=headers)
                reply = connection.getresponse()
                body = reply.read(BODY_BYTES_MAX)
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                # Python 3.11.2 leaves the reply of a refused tunnel, and its socket, to its frame.
                clear_frames(error.__traceback__)
                if not is_new and not isinstance(error, TimeoutError):
                    continue  # the service closed it while it was idle
                raise ListingFailed(Failure(trouble=_trouble(error), said=str(error))) from error
            if reply.will_close:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)
            return reply.status, body

    def _headers(self, query: str) -> dict[str, str]:
        more = {"x-amz-request-payer": "requester"} if self._options.requester_pays else {}
        if not self._is_signed:
            return more
        found = sendable(self._credentials)
        return signed_headers(
            self._url,
            query,
            region=self._region,
            key=found["access_key_id"],
            secret=found["secret_access_key"],
            token=found.get("token") or "",
            more=more,
            now=datetime.now(UTC),
        )

    def _target(self, query: str) -> str:
        parts = urlsplit(self._url)
        absolute = self._proxy and parts.scheme == "http"
        return f"{self._url if absolute else parts.path or '/'}?{query}"

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._url)
        timeout_s = min(self._options.quiet_s_max, self._options.attempt_s_max)
        peer = urlsplit(self._proxy) if self._proxy else parts
        host, port = peer.hostname or "", peer.port
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls())
        if self._proxy:
            headers = _credentials_for(self._proxy)
            connection.set_tunnel(parts.hostname or "", parts.port, headers)
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            if self._trusted:
                self._context.load_verify_locations(cadata=self._trusted)
        return self._context


def _credentials_for(proxy: str) -> dict[str, str]:
    """The header that names the user of a proxy's URL; none without one. Pure."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"proxy-authorization": f"Basic {b64encode(named.encode()).decode()}"}


def parsed(body: bytes) -> Page:
    """Parse a reply to ListObjectsV2. Decodes keys if the service encoded them. Pure.

    Raises:
        ListingFailed: it is no listing, or is truncated without a continuation token.
    """
    try:
        objects, rest = _usual_objects(body)
        page = _page(_root(rest))
        return Page(objects, page.prefixes, page.next_token) if objects else page
    except (ElementTree.ParseError, ValueError) as error:
        raise ListingFailed(Failure(trouble="odd", said=f"no listing, {error}")) from error


_TEXT: Final = r"([^<\x00-\x1f]*)"
_USUAL: Final = re.compile(
    rf"<Contents><Key>{_TEXT}</Key><LastModified>{_TEXT}</LastModified><ETag>{_TEXT}</ETag>"
    r"(?:<Checksum\w+>\w*</Checksum\w+>)*<Size>(\d+)</Size>"
    r"(?:<Owner>(?:<(?:ID|DisplayName)>[^<]*</\w+>)*</Owner>)?"
    r"(?:<StorageClass>\w*</StorageClass>)?</Contents>"
)
"""An object as AWS writes it, and most services."""


def _usual_objects(body: bytes) -> tuple[list[Listed], bytes]:
    """Return all objects of a page in AWS's form, and the rest of the page. Pure.

    None and the whole page if any object has another form, or an escaped key. A thousand elements
    cost twice as much in the parser.

    Raises:
        ValueError: a text is no UTF-8.
    """
    text = body.decode().replace("&quot;", '"').replace("&#34;", '"')  # of the tags
    split = _USUAL.split(text)
    keys, *others = (split[at::5] for at in range(1, 5))
    is_usual = len(keys) == text.count("<Contents>") and "<EncodingType>" not in text
    if not is_usual or "&" in "".join(map("".join, (keys, *others))):
        return [], body
    modified, tags, sizes = others
    objects = list(map(Listed, keys, map(int, sizes), tags, modified))
    return objects, "".join(split[::5]).encode()


def _page(root: ElementTree.Element) -> Page:
    space, _, name = root.tag.rpartition("}")
    if name != "ListBucketResult":
        raise ValueError(f"but {name!r}")
    space = space and f"{space}}}"
    decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    token = root.findtext(f"{space}NextContinuationToken", "")
    if root.findtext(f"{space}IsTruncated", "").strip().lower() != "true":
        token = ""
    elif not token:
        said = "a page of a listing says that more follows, and not where"
        raise ListingFailed(Failure(trouble="odd", said=said))
    key, size = f"{space}Key", f"{space}Size"
    e_tag, modified = f"{space}ETag", f"{space}LastModified"
    objects: list[Listed] = []
    for one in root.iterfind(f"{space}Contents"):
        text = one.findtext
        name, length = text(key), text(size)
        if name is None or length is None:
            raise ValueError("but an object without a key or a size")
        objects.append(Listed(decode(name), int(length), text(e_tag, ""), text(modified, "")))
    prefixes = root.iterfind(f"{space}CommonPrefixes/{space}Prefix")
    return Page(objects, [decode(one.text or "") for one in prefixes], token)


def _root(body: bytes) -> ElementTree.Element:
    """Return the root of a page, also of one with keys that XML cannot express.

    A control character becomes a backslash and a number. No object name has one, so such a key is
    skipped later.

    Raises:
        ElementTree.ParseError: the body is still invalid.
    """

    def shown(found: re.Match[bytes]) -> bytes:
        digits = found[1] or b""
        base = 16 if digits[:1] in {b"x", b"X"} else 10
        number = int(digits.lstrip(b"xX"), base) if digits else found[0][0]
        is_allowed = number in {0x9, 0xA, 0xD} or number >= ord(" ")
        return found[0] if is_allowed else b"\\x%02x" % number

    try:
        return ElementTree.fromstring(body)  # noqa: S314 - the service is trusted
    except ElementTree.ParseError:
        return ElementTree.fromstring(_CONTROL.sub(shown, body))  # noqa: S314 - as above


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _trouble(error: Exception) -> Trouble:
    """Classify the error of a failed exchange. Pure."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "expired" if error.verify_code in {9, 10} else "untrusted"  # X509_V_ERR_CERT_*
    if isinstance(error, ssl.SSLError) and error.reason in {
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "HTTP_REQUEST",
    }:
        return "plain"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, socket.gaierror):
        return "host"
    return "refused" if isinstance(error, ConnectionRefusedError) else "broken"


def _break(connection: http.client.HTTPConnection) -> None:
    """Shut down a connection to wake the thread that waits on it."""
    sock: Any = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


Calls = SimpleQueue[Callable[[], Callable[[], object]]]
_IDLE: Final[list[Calls]] = []
"""Queues of the idle threads. A new thread costs more CPU time than the listing."""
IDLE_MAX: Final = 8
"""Most idle threads of a process."""


async def _in_daemon(call: Callable[[], ResultT]) -> ResultT:
    """Run a call in a daemon thread, so that exit does not wait for a silent name server."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(result: ResultT | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # pyright: ignore[reportArgumentType] - the call's own
        else:
            future.set_exception(error)

    def run() -> Callable[[], object]:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it leaves by the future
            failure = error
        return lambda: loop.call_soon_threadsafe(settle, result, failure)

    try:
        calls = _IDLE.pop()
    except IndexError:
        calls = Calls()
        Thread(target=_serve, args=(calls,), name="s3-listing", daemon=True).start()
    calls.put(run)
    return await future


def _serve(calls: Calls) -> None:
    """Run the calls of a queue. End if enough threads are idle.

    The thread is idle before a call's caller continues, so one caller at a time needs one thread.
    """
    is_kept = True
    while is_kept:
        settle = calls.get()()
        is_kept = len(_IDLE) < IDLE_MAX
        if is_kept:
            _IDLE.append(calls)
        with suppress(RuntimeError):  # the loop has ended
            settle()
        del settle  # an idle thread keeps nothing alive


Credentials = Callable[[], Credential]

EXIT_WAIT_S: Final = 0.1
"""Seconds to wait at exit. obstore 0.12 aborts a process that ends within milliseconds of its last
request, because its runtime calls into an interpreter that has ended."""

_RUNTIME_PROCESS: list[int] = []
"""Id of the process in which the library's runtime started, if it has."""


Use = Literal["uploading", "single", "deleting"]
"""Uses of a bucket besides reads and listings."""


class Clients:
    """Clients of one bucket: for reads, uploads, creates, single deletions, and listings.

    The library must not retry a create: the object of the first attempt would refuse the second. It
    sees no progress of an upload until the reply begins, so an idle timeout would end each longer
    upload.
    """

    def __init__(self, bucket: str, options: S3Options, *, credentials: Credentials) -> None:
        """Create the clients of readers without a request. Blocking: may read files of credentials.

        Raises:
            ValueError: the endpoint of the environment is wrong.
            OSError: this process was forked from one that used S3, or the file of certificates
                cannot be read.
        """
        begin_in_this_process()
        reach = _Reach.of(bucket, options, credentials)
        self.place = reach.place
        quiet_s_max, retries_max = options.quiet_s_max, options.retries_max
        self.repeating = reach.client(retries_max, quiet_s_max)
        self._makers: Mapping[Use, Callable[[], S3Store]] = {
            "uploading": partial(reach.client, retries_max),
            "single": partial(reach.client, 0),
            "deleting": partial(reach.client, retries_max, quiet_s_max, disable_bulk_delete=True),
        }
        self._made: dict[Use, S3Store] = {}
        self._making = Lock()
        self.lister = BucketLister(
            reach.url,
            options,
            region=reach.place.region,
            credentials=credentials,
            proxy=reach.proxy,
            trusted=reach.trusted,
        )

    async def of(self, use: Use) -> S3Store:
        """Return a client that readers do not need. Making it reads the certificates, for 7 ms."""
        return self._made.get(use) or await asyncio.to_thread(self._make, use)

    def _make(self, use: Use) -> S3Store:
        with self._making:  # concurrent first calls wait for one of them
            if use not in self._made:
                self._made[use] = self._makers[use]()
            return self._made[use]

    def close(self) -> None:
        """Close the connections of the listing client. The library closes its own."""
        self.lister.close()


def begin_in_this_process() -> None:
    """Record that this process uses the library's runtime. Refuse a forked child: it would hang.

    Raises:
        OSError: this is a forked child; the text has the remedy.
    """
    if not _RUNTIME_PROCESS:
        _RUNTIME_PROCESS.append(os.getpid())
        _wait_at_exit()
    check_process()


def check_process() -> None:
    """Refuse a request in a child that was forked after the first request.

    Raises:
        OSError: this is a forked child; the text has the remedy.
    """
    if _RUNTIME_PROCESS and _RUNTIME_PROCESS[0] != os.getpid():
        raise OSError(
            "this process was forked from one that used S3, whose client does not survive that: "
            "start processes with multiprocessing's method 'spawn'"
        )


@cache
def _wait_at_exit() -> None:
    def wait() -> None:
        if os.getpid() in _RUNTIME_PROCESS:
            time.sleep(EXIT_WAIT_S)  # noqa: TID251 - no loop and no clock is left

    atexit.register(wait)


@dataclass(frozen=True, slots=True)
class _Reach:
    """Configuration of the access to a bucket."""

    bucket: str
    options: S3Options
    credentials: Credentials
    endpoint: str
    url: str
    """URL of the bucket."""
    proxy: tuple[str, str]
    trusted: str
    """Trusted certificates (PEM) in addition to the system's."""
    place: Place

    @classmethod
    def of(cls, bucket: str, options: S3Options, credentials: Credentials) -> "_Reach":
        endpoint = endpoint_of(options, os.environ)
        region = region_of(options, os.environ)
        if not region and isinstance(credentials, ChainCredentials):
            region = credentials.region()
            if not is_sendable(region):
                raise OSError(
                    errno.EOPNOTSUPP,
                    f"the profile's region {region!r} is no name of a region; correct it",
                    bucket,
                )
        region = region or "us-east-1"
        url = bucket_url(endpoint, region, bucket, virtual_hosted=options.virtual_hosted)
        proxy = proxy_of(options, endpoint, os.environ)
        place = Place(
            endpoint=endpoint,
            bucket=bucket,
            region=region,
            proxy=without_password(proxy_for(url, *proxy)),
        )
        trusted = certificates_of(options, os.environ)
        return cls(bucket, options, credentials, endpoint, url, proxy, trusted, place)

    def client(self, retries_max: int, quiet_s_max: float | None = None, **more: object) -> S3Store:
        options = self.options
        config: dict[str, Any] = {
            # The server verifies the payload's checksum and stores it. It also replaces the hash of
            # a signed payload, which costs more than twice the CPU.
            "unsigned_payload": True,
            "virtual_hosted_style_request": options.virtual_hosted,
            "region": self.place.region,
            **more,
        }
        if options.upload_checksum:
            config["checksum_algorithm"] = options.upload_checksum
        if self.endpoint:
            config["endpoint"] = self.url if options.virtual_hosted else self.endpoint.rstrip("/")
        if options.requester_pays:
            config["request_payer"] = True
        if options.server_side_encryption:
            config["server_side_encryption"] = options.server_side_encryption
        if options.kms_key_id:
            config["sse_kms_key_id"] = options.kms_key_id
        return S3Store(
            self.bucket,
            config=config,  # pyright: ignore[reportArgumentType] - a dict of the same keys
            client_options=cast("Any", self._patience(quiet_s_max)),
            retry_config={
                "max_retries": retries_max,
                "retry_timeout": timedelta(seconds=options.total_s_max),
                "backoff": {"init_backoff": timedelta(seconds=options.retry_s_min), "base": 2},
            },
            credential_provider=cast("Any", partial(sendable, self.credentials)),
        )

    def _patience(self, quiet_s_max: float | None) -> dict[str, Any]:
        options = self.options
        patience: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=min(options.quiet_s_max, options.attempt_s_max)),
            "timeout": timedelta(seconds=options.attempt_s_max),
            "pool_idle_timeout": timedelta(seconds=15),
            "user_agent": "tieredstore",
            "allow_http": self.endpoint.startswith("http://"),
        }
        if quiet_s_max is not None:
            patience["read_timeout"] = timedelta(seconds=quiet_s_max)
        if self.proxy[0]:
            patience |= {"proxy_url": self.proxy[0], "proxy_excludes": self.proxy[1]}
        if self.trusted:
            patience["root_certificate"] = self.trusted
        return patience


def certificates_of(options: S3Options, environment: Mapping[str, str]) -> str:
    """Read the trusted certificates (PEM) in addition to the system's. Blocking.

    Raises:
        OSError: EOPNOTSUPP if the file has no certificate or cannot be read.
    """
    name = options.ca_bundle or environment.get("AWS_CA_BUNDLE", "")
    if not name:
        return ""
    try:
        text = Path(name).read_text("ascii", errors="replace")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    else:
        if "-----BEGIN CERTIFICATE-----" in text:
            return text
        why = "has no certificate (PEM)"
    raise OSError(
        errno.EOPNOTSUPP,
        f"the file of trusted certificates {name} {why}; correct objectStoreCaBundle or "
        f"AWS_CA_BUNDLE",
        name,
    )


def without_password(url: str) -> str:
    """Remove user and password from a URL. Pure."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
