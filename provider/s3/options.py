"""Options of S3: endpoint, region, proxy, timeouts, and the validation of endpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib import request
from urllib.parse import urlsplit

from provider.names import ENDPOINT_VARIABLES, is_loopback

MIB: Final = 1 << 20

ENCRYPTIONS: Final = ("", "AES256", "aws:kms", "aws:kms:dsse")
"""Values of `server_side_encryption`: none, keys of S3, keys of KMS, two layers of KMS."""
CHECKSUMS: Final = ("CRC64NVME", "SHA256", "")
"""Values of `upload_checksum`; empty: no checksum."""
NEVER_PROXIED: Final = "localhost,127.0.0.0/8,::1"


def is_sendable(text: str) -> bool:
    """Whether a request can hold a text: ASCII without control characters. Pure."""
    return text.isascii() and text.isprintable()


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Options of an `S3FileSystem`, without credentials.

    Credentials come from the environment, boto3's chain (`errors.py`) or a credential provider,
    never from an option.

    Raises:
        ValueError: an option is wrong; the text has the reason.
    """

    endpoint: str = ""
    """`https://host[:port][/path]` of the service; empty takes `AWS_ENDPOINT_URL`, then AWS."""
    region: str = ""
    """Region that requests are signed for; empty takes `AWS_REGION`, then the profile's, then
    `us-east-1`."""
    allow_http: bool = False
    """Whether requests may go to another machine without TLS. Loopback needs no permission."""
    virtual_hosted: bool = False
    """Whether the bucket's name is part of the host's name; else it begins the path."""
    requester_pays: bool = False
    """Whether requests accept that their caller is billed."""
    upload_checksum: str = "CRC64NVME"
    """Checksum that the service verifies and stores with the object; see `CHECKSUMS`."""
    ca_bundle: str = ""
    """File of trusted certificates (PEM) in addition to the system's; empty takes
    `AWS_CA_BUNDLE`."""
    proxy: str = ""
    """URL of an HTTP proxy; empty takes `HTTPS_PROXY` or `HTTP_PROXY`, by the endpoint. Hosts of
    `NO_PROXY` and loopback are reached without one."""
    server_side_encryption: str = ""
    """Encryption that every upload requests; see `ENCRYPTIONS`."""
    kms_key_id: str = ""
    """Key of `aws:kms`; empty takes the account's own."""
    connections_max: int = 64
    """Concurrent requests. Further ones wait."""
    attempt_s_max: float = 60.0
    """Timeout of one request in seconds, from connecting to the last byte of its reply."""
    quiet_s_max: float = 20.0
    """Idle timeout in seconds, of connecting and of the reply to any request except an upload.
    Progress of an upload is unknown, so it has only `attempt_s_max`."""
    total_s_max: float = 120.0
    """Timeout of a call in seconds, with all its attempts and the wait for a connection."""
    retries_max: int = 5
    """Most retries of idempotent calls."""
    retry_s_min: float = 0.1
    """Approximate pause before the first retry, in seconds. Each further retry doubles it."""
    object_bytes_max: int = 5 << 30
    """Longest uploaded object, in bytes. S3 accepts 5 GiB in one request."""

    def __post_init__(self) -> None:
        if self.server_side_encryption not in ENCRYPTIONS:
            known = ", ".join(one for one in ENCRYPTIONS if one)
            raise ValueError(
                f"no such server-side encryption: {self.server_side_encryption!r} ({known})"
            )
        if self.upload_checksum not in CHECKSUMS:
            raise ValueError(f"no such upload checksum: {self.upload_checksum!r}")
        if not is_sendable(self.kms_key_id):
            raise ValueError(f"a KMS key is named in ASCII, on one line: not {self.kms_key_id!r}")
        if self.kms_key_id and not self.server_side_encryption.startswith("aws:kms"):
            raise ValueError("a KMS key needs the server-side encryption aws:kms")
        numbers = (
            self.connections_max,
            self.attempt_s_max,
            self.quiet_s_max,
            self.total_s_max,
            self.retry_s_min,
        )
        if min(numbers) <= 0 or self.retries_max < 0 or self.object_bytes_max <= 0:
            raise ValueError(f"an S3 client needs connections and time: {self}")
        if self.endpoint:
            check_endpoint(self.endpoint, allow_http=self.allow_http)


def check_endpoint(endpoint: str, *, allow_http: bool) -> None:
    """Refuse an endpoint that is malformed, has credentials, or would send signatures in clear.

    Raises:
        ValueError: the text has the reason, without possible secrets.
    """
    if not _has_host(endpoint) or urlsplit(endpoint).scheme not in {"http", "https"}:
        raise ValueError(
            "an S3 endpoint is https://host[:port][/path] in ASCII, or http:// on this machine; "
            "check objectStoreEndpoint or AWS_ENDPOINT_URL"
        )
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    shown = f"{parts.scheme}://{host}"
    if parts.username or parts.password:
        raise ValueError(
            f"the endpoint {shown} holds credentials: give them in AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"the endpoint {shown} has more than a host, a port and a path")
    if parts.scheme == "http" and not allow_http and not is_loopback(host):
        raise ValueError(
            f"the endpoint {shown} is on another machine and without TLS: use https://, or allow "
            f"http on purpose"
        )


def _has_host(url: str) -> bool:
    """Whether a request can hold a URL, and the URL has a host and a right port. Pure."""
    try:
        parts = urlsplit(url)
        return is_sendable(url) and " " not in url and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def endpoint_of(options: S3Options, environment: Mapping[str, str]) -> str:
    """Return the endpoint of requests; empty: AWS's own. Pure.

    Raises:
        ValueError: the endpoint of the environment is wrong, as `check_endpoint`.
    """
    if options.endpoint:
        return options.endpoint
    found = next(filter(None, map(environment.get, ENDPOINT_VARIABLES)), "")
    if found:
        check_endpoint(found, allow_http=options.allow_http)
    return found


def region_of(options: S3Options, environment: Mapping[str, str]) -> str:
    """Return the region that requests are signed for; empty: unknown without a profile. Pure.

    Raises:
        ValueError: no request can hold the region.
    """
    names = ("AWS_REGION", "AWS_DEFAULT_REGION")
    found = options.region or next((environment[one] for one in names if environment.get(one)), "")
    if not is_sendable(found):
        raise ValueError(
            f"a region is a name such as eu-west-3, not {found!r}; check objectStoreRegion or "
            f"AWS_REGION"
        )
    return found


def bucket_url(endpoint: str, region: str, bucket: str, *, virtual_hosted: bool) -> str:
    """Return the URL of a bucket, without a final slash. Pure."""
    scheme, _, host = (
        (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/").partition("://")
    )
    return f"{scheme}://{bucket}.{host}" if virtual_hosted else f"{scheme}://{host}/{bucket}"


def proxy_of(options: S3Options, endpoint: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the URL of the proxy for an endpoint, "" for none, and the hosts to reach directly."""
    by_scheme = request.getproxies_environment()
    scheme = urlsplit(endpoint).scheme or "https"
    found = options.proxy or by_scheme.get(scheme) or by_scheme.get("all", "")
    excluded = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    return found, ",".join(filter(None, (excluded, NEVER_PROXIED)))


def proxy_for(url: str, proxy: str, excluded: str) -> str:
    """Return the proxy for a URL, "" for none. Loopback never has one. Pure."""
    host = urlsplit(url).hostname or ""
    bypass: Any = vars(request)["proxy_bypass_environment"]  # not in the stubs, but documented
    if is_loopback(host) or bypass(host, {"no": excluded}):
        return ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def check_proxy(options: S3Options, endpoint: str, environment: Mapping[str, str]) -> None:
    """Refuse a proxy that listings cannot pass: they speak HTTP to it. Pure.

    Raises:
        ValueError: the text names the scheme and the settings, without possible secrets.
    """
    found = proxy_of(options, endpoint, environment)
    given = found[0] if "://" in found[0] or not found[0] else f"http://{found[0]}"
    if given and not _has_host(given):  # the library refuses it even where it is not used
        raise ValueError(
            "a proxy is http://host[:port], with a host and a right port; check objectStoreProxy, "
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
        )
    scheme = urlsplit(proxy_for(endpoint or "https://s3.amazonaws.com", *found)).scheme
    if scheme not in {"", "http"}:
        raise ValueError(
            f"a proxy for S3 is http://host[:port], not {scheme}://; check objectStoreProxy, "
            f"HTTPS_PROXY and ALL_PROXY, or name the endpoint's host in NO_PROXY"
        )
