"""The clients of one bucket, and what becomes of them at a fork and at the interpreter's end."""

import atexit
import os
import time
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

from obstore.store import S3Store

from provider.s3.options import S3Options, endpoint_of

EXIT_WAIT_S: Final = 0.1
"""A process that ends within milliseconds of its last request is aborted by obstore 0.12: its
runtime calls back into an interpreter that is gone."""

_RUNTIME_PROCESS: list[int] = []
"""The process in which the library's runtime began, once it has."""


class Clients:
    """Three clients of one bucket: for reads, for uploads, and for creates.

    A create must not be repeated unseen: the second attempt would be refused by what the first one
    left behind. To the library an upload stands still until its reply begins, so that a limit of
    quiet time would end each one that takes longer.
    """

    def __init__(self, bucket: str, options: S3Options, *, credentials: object = None) -> None:
        """Nothing is requested.

        Raises:
            ValueError: the endpoint of the environment is wrong.
            OSError: this process was forked from one that used S3.
        """
        begin_in_this_process()
        quiet_s_max, retries_max = options.quiet_s_max, options.retries_max
        self.repeating = _client(bucket, options, credentials, retries_max, quiet_s_max)
        self.uploading = _client(bucket, options, credentials, retries_max)
        self.single = _client(bucket, options, credentials, 0)


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


def _client(
    bucket: str,
    options: S3Options,
    credentials: object,
    retries_max: int,
    quiet_s_max: float | None = None,
) -> S3Store:
    endpoint = endpoint_of(options, os.environ)
    config: dict[str, Any] = {
        # The payload's checksum is verified by the server and stored beside it. It also stands in
        # for the hash of a signed payload, which costs more than twice the CPU.
        "checksum_algorithm": "CRC64NVME",
        "unsigned_payload": True,
        "virtual_hosted_style_request": options.virtual_hosted,
    }
    if endpoint:
        config["endpoint"] = endpoint
    if options.region:
        config["region"] = options.region
    if options.server_side_encryption:
        config["server_side_encryption"] = options.server_side_encryption
    if options.kms_key_id:
        config["sse_kms_key_id"] = options.kms_key_id
    patience: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(options.quiet_s_max, options.attempt_s_max)),
        "timeout": timedelta(seconds=options.attempt_s_max),
        "pool_idle_timeout": timedelta(seconds=15),
        "user_agent": "tieredstore",
    }
    if quiet_s_max is not None:
        patience["read_timeout"] = timedelta(seconds=quiet_s_max)
    return S3Store(
        bucket,
        config=config,  # pyright: ignore[reportArgumentType] - a dict of the same keys
        client_options=cast("Any", {**patience, "allow_http": endpoint.startswith("http://")}),
        retry_config={
            "max_retries": retries_max,
            "retry_timeout": timedelta(seconds=options.total_s_max),
            "backoff": {"init_backoff": timedelta(seconds=options.retry_s_min), "base": 2},
        },
        credential_provider=cast("Any", credentials),
    )
