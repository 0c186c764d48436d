"""An S3 in memory that differs from AWS in one respect at a time: `OddS3(race_s=0.05)`.

It serves loopback from threads of this process. Signatures are not verified; what a request was
signed with is recorded. Requests with an absolute target, as a client sends them to a proxy, are
served as if they had come directly.
"""

import json
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote_plus, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
STAMP = "2026-01-01T00:00:00.000Z"
Tokens = Literal["right", "missing", "repeated", "circle"]


@dataclass(slots=True, kw_only=True)
class Refusal:
    """Requests that are refused, whatever they ask for."""

    status: int
    code: str = ""
    methods: str = "GET HEAD PUT POST DELETE"
    path: str = ""
    """Pattern of the paths, with the query."""
    times: int = 10**9
    """So many are refused, then no more."""
    message: str = "refused on purpose; retry_timeout: 120s, operation timed out"
    """As misleading as servers' texts can be."""
    more: str = ""
    """Further elements of the error."""
    acts: bool = False
    """Whether the request has its effect all the same."""


@dataclass(slots=True, kw_only=True)
class Oddities:
    """What the server does differently. Defaults are AWS's way."""

    refusals: list[Refusal] = field(default_factory=list[Refusal])
    buckets: tuple[str, ...] = ("odd",)
    keys: tuple[str, ...] = ()
    """Access keys that are known; () knows every one."""
    delay_s: float = 0.0
    race_s: float = 0.0
    """Time between the check of a condition and the write."""
    ignores_condition: bool = False
    region: str = ""
    """Requests signed for another one are refused."""
    redirects: bool = False
    """The refusal of a region is a 301, not a 400."""
    checksum_status: int = 0
    """Requests with a checksum header are refused so."""
    virtual_host: str = ""
    """Only `bucket.HOST` is served; a bucket in the path is refused."""
    endpoint_path: str = ""
    """The endpoint has this path, such as `/s3`."""
    requester_pays: bool = False
    e_tags: bool = True
    bulk_delete: bool = True
    undeletable: str = ""
    """Pattern of keys whose deletion is denied, within a 200 where many are deleted."""
    ranges: bool = True
    page_max: int = 1000
    tokens: Tokens = "right"
    empty_pages: bool = False
    token_s: float = 0.0
    """Seconds since the start after which session tokens have expired; 0: never."""
    clock_skew_s: float = 0.0
    configurations: dict[str, str] = field(default_factory=dict[str, str])
    """Bodies of replies about the bucket, by subresource, such as `versioning`."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request."""

    method: str
    target: str
    host: str
    headers: dict[str, str]

    @property
    def access_key(self) -> str:
        """What it was signed with; "" without a signature."""
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        return found[1] if found else ""


class OddS3:
    """The server; `with OddS3(...) as server`."""

    def __init__(self, *, certificate: Path | None = None, **oddities: Any) -> None:
        """`certificate` is a file with a certificate and its key (PEM): the server speaks TLS."""
        self.odd = Oddities(**oddities)
        self.objects: dict[str, dict[str, bytes]] = {name: {} for name in self.odd.buckets}
        self.seen: list[Seen] = []
        self.lock = Lock()
        self.began_s = time.monotonic()
        self.overwritten = 0
        """Objects that a condition should have protected."""
        outer = self

        class Bound(_Handler):
            server_state = outer

        self._server = _Server(("127.0.0.1", 0), Bound)
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}{self.odd.endpoint_path}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a command reaches it."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def counts(self) -> Counter[str]:
        """Requests by method."""
        return Counter(one.method for one in self.seen)

    def names(self, bucket: str = "odd") -> list[str]:
        return sorted(self.objects[bucket])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients that give up are what tests want."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server_state: OddS3

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library has it
        """Nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - as the library has it

    def _serve(self) -> None:
        state, odd = self.server_state, self.server_state.odd
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.body = self.rfile.read(int(headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        host = parts.hostname or urlsplit(f"//{headers.get('host', '')}").hostname or ""
        self.sent = Seen(method=self.command, target=self.path, host=host, headers=headers)
        with state.lock:
            state.seen.append(self.sent)
        if odd.delay_s:
            time.sleep(odd.delay_s)
        path = unquote(parts.path).lstrip("/")
        if odd.endpoint_path:
            path = path.removeprefix(odd.endpoint_path.strip("/")).lstrip("/")
        if odd.virtual_host:
            if not host.endswith(f".{odd.virtual_host}"):
                self._refuse(403, "SecondLevelDomainForbidden")
                return
            path = f"{host.removesuffix(f'.{odd.virtual_host}')}/{path}"
        self.bucket, _, self.key = path.partition("/")
        refusal = self._refusal()
        if refusal is None or refusal.acts:
            self._answer(silent=refusal is not None)
        if refusal is not None:
            self._refuse(refusal.status, refusal.code, refusal.message, refusal.more)

    def _refusal(self) -> Refusal | None:
        state, odd = self.server_state, self.server_state.odd
        with state.lock:
            for one in odd.refusals:
                if one.times and self.command in one.methods and re.search(one.path, self.path):
                    one.times -= 1
                    return one
        return next((refusal for holds, refusal in self._rules() if holds), None)

    def _rules(self) -> list[tuple[bool, Refusal]]:
        """What is refused by the server's nature; the first that holds counts."""
        state, odd, headers = self.server_state, self.server_state.odd, self.sent.headers
        signed = re.search(r"Credential=[^/]+/\d+/([^/]+)/", headers.get("authorization", ""))
        more = f"<Region>{odd.region}</Region>"
        elsewhere = Refusal(status=400, code="AuthorizationHeaderMalformed", more=more)
        if odd.redirects:
            elsewhere = Refusal(status=301, code="PermanentRedirect", more=more)
        is_old = 0 < odd.token_s < time.monotonic() - state.began_s
        sums = [one for one in headers if one.startswith(("x-amz-checksum-", "x-amz-sdk-checksum"))]
        unknown = "NotImplemented" if odd.checksum_status == 501 else "InvalidArgument"
        payer = headers.get("x-amz-request-payer")
        return [
            (signed is not None and odd.region not in {"", signed[1]}, elsewhere),
            (
                bool(odd.keys) and self.sent.access_key not in odd.keys,
                Refusal(status=403, code="InvalidAccessKeyId"),
            ),
            (
                is_old and "x-amz-security-token" in headers,
                Refusal(status=400, code="ExpiredToken"),
            ),
            (odd.requester_pays and payer != "requester", Refusal(status=403, code="AccessDenied")),
            (bool(odd.checksum_status and sums), Refusal(status=odd.checksum_status, code=unknown)),
            (self.bucket not in state.objects, Refusal(status=404, code="NoSuchBucket")),
        ]

    def _answer(self, *, silent: bool) -> None:
        if silent:
            self._reply = self._keep  # type: ignore[method-assign]
        effects: dict[str, Callable[[], None]] = {
            "PUT": self._put, "POST": self._delete_many, "DELETE": self._delete,
        }  # fmt: skip
        if not self.key and self.command in {"GET", "HEAD"}:
            self._about_bucket()
        else:
            effects.get(self.command, self._get)()
        if silent:
            del self._reply

    def _keep(self, *_: Any, **__: Any) -> None:
        """Send nothing."""

    # Effects

    def _put(self) -> None:
        state, odd = self.server_state, self.server_state.odd
        objects = state.objects[self.bucket]
        is_conditional = self.sent.headers.get("if-none-match") == "*" and not odd.ignores_condition
        with state.lock:
            is_refused = is_conditional and self.key in objects
            if not is_refused and not odd.race_s:
                objects[self.key] = self.body
        if is_refused:
            self._refuse(412, "PreconditionFailed")
            return
        if odd.race_s:
            time.sleep(odd.race_s)
            with state.lock:
                state.overwritten += is_conditional and self.key in objects
                objects[self.key] = self.body
        self._reply(200, b"", {"ETag": _tag(self.body)} if odd.e_tags else {})

    def _get(self) -> None:
        odd = self.server_state.odd
        found = self.server_state.objects[self.bucket].get(self.key)
        if found is None:
            self._refuse(404, "NoSuchKey")
            return
        headers = {"Last-Modified": formatdate(1_767_225_600, usegmt=True)}
        headers |= {"ETag": _tag(found)} if odd.e_tags else {}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.sent.headers.get("range", ""))
        if wanted is None or not odd.ranges or self.command == "HEAD":
            self._reply(200, found, headers)
            return
        length = len(found)
        start = int(wanted[1]) if wanted[1] else length - int(wanted[2])
        end = min(int(wanted[2]) if wanted[1] and wanted[2] else length - 1, length - 1)
        if start >= length:
            self._refuse(416, "InvalidRange")
            return
        headers["Content-Range"] = f"bytes {start}-{end}/{length}"
        self._reply(206, found[start : end + 1], headers)

    def _delete(self) -> None:
        if self._removed(self.key):
            self._reply(204)
        else:
            self._refuse(403, "AccessDenied")

    def _delete_many(self) -> None:
        if "delete" not in self.query or not self.server_state.odd.bulk_delete:
            self._refuse(501, "NotImplemented")
            return
        said = ""
        for raw in re.findall(r"<Key>(.*?)</Key>", self.body.decode(), re.DOTALL):
            key = unescape(raw, {"&quot;": '"', "&apos;": "'"})
            if self._removed(key):
                said += f"<Deleted><Key>{escape(key)}</Key></Deleted>"
            else:
                said += (
                    f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code>"
                    f"<Message>Access Denied</Message></Error>"
                )
        self._xml(f'<DeleteResult xmlns="{NAMESPACE}">{said}</DeleteResult>')

    def _removed(self, key: str) -> bool:
        pattern = self.server_state.odd.undeletable
        if pattern and re.search(pattern, key):
            return False
        with self.server_state.lock:
            self.server_state.objects[self.bucket].pop(key, None)
        return True

    # The bucket

    def _about_bucket(self) -> None:
        for name, body in self.server_state.odd.configurations.items():
            if name in self.query:
                status = 200 if body.startswith("<") else 404
                if status == 200:
                    self._xml(body)
                else:
                    self._refuse(status, body)
                return
        if "list-type" in self.query:
            self._list()
        elif self.command == "HEAD":
            self._reply(
                200, b"", {"x-amz-bucket-region": self.server_state.odd.region or "us-east-1"}
            )
        elif "uploads" in self.query:
            self._xml(f'<ListMultipartUploadsResult xmlns="{NAMESPACE}"/>')
        else:
            self._xml(f'<Configuration xmlns="{NAMESPACE}"/>')

    def _list(self) -> None:
        odd, query = self.server_state.odd, self.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = query.get("continuation-token", "")
        after = json.loads(token)[0] if token else query.get("start-after", "")
        with self.server_state.lock:
            found = {key: len(body) for key, body in self.server_state.objects[self.bucket].items()}
        entries: dict[str, bool] = {}
        for key in sorted(key for key in found if key.startswith(prefix)):
            head, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            entry = f"{prefix}{head}{mark}" if mark else key
            if entry > after and (not mark or not after.startswith(entry)):
                entries[entry] = bool(mark)
        most = min(int(query.get("max-keys", "1000")), odd.page_max)
        page = list(entries)[:most]
        is_cut = len(entries) > most
        if odd.empty_pages and not token:
            page, is_cut = [], True
        elements = ""
        next_token = json.dumps([page[-1] if page else after, len(page)])
        if is_cut and odd.tokens != "missing":
            if odd.tokens == "repeated" and token:
                next_token = token
            elif odd.tokens == "circle" and token:
                next_token = json.dumps(["", 0])
            elements = f"<NextContinuationToken>{escape(next_token)}</NextContinuationToken>"
        encode: Callable[[str], str] = escape
        if query.get("encoding-type") == "url":
            encode = quote_plus
            elements += "<EncodingType>url</EncodingType>"
        for entry in page:
            if entries[entry]:
                elements += f"<CommonPrefixes><Prefix>{encode(entry)}</Prefix></CommonPrefixes>"
            else:
                elements += (
                    f"<Contents><Key>{encode(entry)}</Key><LastModified>{STAMP}</LastModified>"
                    f"<ETag>&quot;x&quot;</ETag><Size>{found[entry]}</Size></Contents>"
                )
        self._xml(
            f'<ListBucketResult xmlns="{NAMESPACE}"><IsTruncated>{str(is_cut).lower()}'
            f"</IsTruncated>{elements}</ListBucketResult>"
        )

    # Replies

    def _xml(self, body: str) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'
        self._reply(200, text.encode(), {"Content-Type": "application/xml"})

    def _refuse(self, status: int, code: str, message: str = "m", more: str = "") -> None:
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
            f"<Message>{message}</Message>{more}</Error>"
        )
        self._reply(status, body.encode() if code else b"", {"Content-Type": "application/xml"})

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        now_s = time.time() + self.server_state.odd.clock_skew_s
        self.send_header("Date", formatdate(now_s, usegmt=True))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(body: bytes) -> str:
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'
