"""Where an S3 lies, how patient its client is, and what must hold before a request is signed."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib import request
from urllib.parse import urlsplit

MIB: Final = 1 << 20

ENCRYPTIONS: Final = ("", "AES256", "aws:kms", "aws:kms:dsse")
"""Values of `server_side_encryption`: none, with keys of S3, with keys of KMS."""
CHECKSUMS: Final = ("CRC64NVME", "SHA256", "")
"""Values of `upload_checksum`; the last one sends none."""
NEVER_PROXIED: Final = "localhost,127.0.0.0/8,::1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Everything that an `S3FileSystem` may be told, but for credentials.

    Those come from boto3's chain (`errors.py`) or from a credential provider; never from an
    option.

    Raises:
        ValueError: says in one sentence what is wrong.
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
    """One of `CHECKSUMS`: the service verifies it, and stores it beside the object."""
    ca_bundle: str = ""
    """File of certificates (PEM) that are trusted besides the system's; empty takes
    `AWS_CA_BUNDLE`."""
    proxy: str = ""
    """URL of an HTTP proxy; empty takes `HTTPS_PROXY` or `HTTP_PROXY`, by the endpoint. Hosts of
    `NO_PROXY` and loopback are reached without one."""
    server_side_encryption: str = ""
    """One of `ENCRYPTIONS`; every created object asks for it."""
    kms_key_id: str = ""
    """Key of `aws:kms`; empty takes the account's own."""
    connections_max: int = 64
    """Requests under way at once; the next ones wait."""
    attempt_s_max: float = 60.0
    """Longest that one request takes, in seconds, from connecting to the last byte of its reply."""
    quiet_s_max: float = 20.0
    """Longest that a connection, or the reply to anything but an upload, stands still, in seconds;
    of an upload only its whole time is known."""
    total_s_max: float = 120.0
    """Longest that a call takes with all its attempts and the wait for a connection, in seconds."""
    retries_max: int = 5
    """Attempts beside the first, of calls that change nothing or may be repeated."""
    retry_s_min: float = 0.1
    """Pause before the first of them, about, in seconds; each further one doubles it."""
    object_bytes_max: int = 5 << 30
    """Longest object that is uploaded, in bytes; S3 takes 5 GiB in one request."""

    def __post_init__(self) -> None:
        if self.server_side_encryption not in ENCRYPTIONS:
            known = ", ".join(one for one in ENCRYPTIONS if one)
            raise ValueError(
                f"no such server-side encryption: {self.server_side_encryption!r} ({known})"
            )
        if self.upload_checksum not in CHECKSUMS:
            raise ValueError(f"no such upload checksum: {self.upload_checksum!r}")
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
    """Refuse what is no endpoint, holds credentials, or would carry signatures in the clear.

    Raises:
        ValueError: says in one sentence what is wrong, without what may be a secret.
    """
    parts = urlsplit(endpoint)
    shown = f"{parts.scheme}://{parts.hostname}"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an S3 endpoint is https://host[:port][/path], or http:// on this machine")
    if parts.username or parts.password:
        raise ValueError(
            f"the endpoint {shown} holds credentials: give them in AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"the endpoint {shown} has more than a host, a port and a path")
    if parts.scheme == "http" and not allow_http and not is_loopback(parts.hostname):
        raise ValueError(
            f"the endpoint {shown} is on another machine and without TLS: use https://, or allow "
            f"http on purpose"
        )


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine, as its name or address says."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def endpoint_of(options: S3Options, environment: Mapping[str, str]) -> str:
    """The endpoint that requests go to; empty is AWS's own.

    Raises:
        ValueError: the one of the environment is wrong, as `check_endpoint`.
    """
    if options.endpoint:
        return options.endpoint
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    found = next((environment[name] for name in names if environment.get(name)), "")
    if found:
        check_endpoint(found, allow_http=options.allow_http)
    return found


def region_of(options: S3Options, environment: Mapping[str, str]) -> str:
    """The region that requests are signed for; empty where only a profile may say it."""
    names = ("AWS_REGION", "AWS_DEFAULT_REGION")
    return options.region or next((environment[one] for one in names if environment.get(one)), "")


def bucket_url(endpoint: str, region: str, bucket: str, *, virtual_hosted: bool) -> str:
    """The URL of a bucket, without a slash at its end."""
    scheme, _, host = (
        (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/").partition("://")
    )
    return f"{scheme}://{bucket}.{host}" if virtual_hosted else f"{scheme}://{host}/{bucket}"


def proxy_of(options: S3Options, endpoint: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """URL of the proxy for an endpoint, "" for none, and the hosts that are reached without it."""
    by_scheme = request.getproxies_environment()
    scheme = urlsplit(endpoint).scheme or "https"
    found = options.proxy or by_scheme.get(scheme) or by_scheme.get("all", "")
    excluded = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    return found, ",".join(filter(None, (excluded, NEVER_PROXIED)))


def proxy_for(url: str, proxy: str, excluded: str) -> str:
    """The proxy for a URL, "" for none; loopback never has one. Pure."""
    host = urlsplit(url).hostname or ""
    bypass: Any = vars(request)["proxy_bypass_environment"]  # not in the stubs, but documented
    if is_loopback(host) or bypass(host, {"no": excluded}):
        return ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"
