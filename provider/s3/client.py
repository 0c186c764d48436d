"""The clients of one bucket, and what becomes of them at a fork and at the interpreter's end."""

import atexit
import errno
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from obstore.store import S3Store

from provider.s3.credentials import ChainCredentials, Credential
from provider.s3.errors import Place
from provider.s3.listing import BucketLister
from provider.s3.options import (
    S3Options,
    bucket_url,
    endpoint_of,
    proxy_for,
    proxy_of,
    region_of,
)

Credentials = Callable[[], Credential]

EXIT_WAIT_S: Final = 0.1
"""A process that ends within milliseconds of its last request is aborted by obstore 0.12: its
runtime calls back into an interpreter that is gone."""

_RUNTIME_PROCESS: list[int] = []
"""The process in which the library's runtime began, once it has."""


class Clients:
    """The clients of one bucket: for reads, uploads, creates, single deletions, and listings.

    A create must not be repeated unseen: the second attempt would be refused by what the first one
    left behind. To the library an upload stands still until its reply begins, so that a limit of
    quiet time would end each one that takes longer.
    """

    def __init__(self, bucket: str, options: S3Options, *, credentials: Credentials) -> None:
        """Nothing is requested. Blocks where a profile or a file of certificates is read.

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
        self.uploading = reach.client(retries_max)
        self.single = reach.client(0)
        self.deleting = reach.client(retries_max, quiet_s_max, disable_bulk_delete=True)
        self.lister = BucketLister(
            reach.url,
            options,
            region=reach.place.region,
            credentials=credentials,
            proxy=reach.proxy,
            trusted=reach.trusted,
        )

    def close(self) -> None:
        """Drop connections that nothing else drops."""
        self.lister.close()


def begin_in_this_process() -> None:
    """Note that the library's runtime is used here; refuse a forked child, which would hang.

    Raises:
        OSError: one sentence says what to do.
    """
    if not _RUNTIME_PROCESS:
        _RUNTIME_PROCESS.append(os.getpid())
        _wait_at_exit()
    check_process()


def check_process() -> None:
    """Refuse a request in a child that was forked after the first one.

    Raises:
        OSError: one sentence says what to do.
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
    """How a bucket is reached."""

    bucket: str
    options: S3Options
    credentials: Credentials
    endpoint: str
    url: str
    """Of the bucket."""
    proxy: tuple[str, str]
    trusted: str
    """Certificates (PEM), beside the system's."""
    place: Place

    @classmethod
    def of(cls, bucket: str, options: S3Options, credentials: Credentials) -> "_Reach":
        endpoint = endpoint_of(options, os.environ)
        region = region_of(options, os.environ)
        if not region and isinstance(credentials, ChainCredentials):
            region = credentials.region()
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
            # The payload's checksum is verified by the server and stored beside it. It also stands
            # in for the hash of a signed payload, which costs more than twice the CPU.
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
            credential_provider=cast("Any", self.credentials),
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
    """The certificates (PEM) that are trusted besides the system's. Blocks.

    Raises:
        OSError: EOPNOTSUPP, the file is none of certificates, or cannot be read.
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
    """A URL without user and password. Pure."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
