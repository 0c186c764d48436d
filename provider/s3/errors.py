"""Failed requests as the `OSError`s of a file system, and the credentials of requests.

Only this module depends on the errors of obstore and boto3.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import asyncio
import errno
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from threading import Lock
from typing import Any, Final, Literal

from obstore.exceptions import BaseError

from provider.object.files import NoPlace
from provider.s3.options import is_sendable

# botocore has no types.


REFRESH_S: Final = 300.0
"""Age in seconds at which credentials are read again. boto3 renews expiring credentials a quarter
of an hour before they expire. Credentials of a file are read from it again."""
_ID, _SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
_TOKEN = "AWS_SESSION_TOKEN"  # noqa: S105 - a name

Credential = Mapping[str, Any]
"""Result of obstore's credential providers: key, secret, token and the time of the next read."""


class NoCredentials(PermissionError):
    """Credentials are missing, or their configuration is wrong. The text has the setting to fix."""


def sendable(credentials: Callable[[], Credential]) -> Credential:
    """Call a credential provider, and verify that requests can hold its result.

    Raises:
        NoCredentials: as the provider, or a value has a line break or another character that no
            header can hold. The text names the value, and has no part of it.
    """
    found = credentials()
    for name, text in found.items():
        if isinstance(text, str) and not is_sendable(text):
            variable = {"access_key_id": _ID, "secret_access_key": _SECRET, "token": _TOKEN}
            raise NoCredentials(
                f"{variable.get(name, name)}, or its value in a profile or setting, has a line "
                f"break or a character that is not ASCII"
            )
    return found


class EnvironmentCredentials:
    """Key pair of `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. The repr has neither."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        token = environment.get(_TOKEN) or environment.get("AWS_SECURITY_TOKEN") or ""
        self._found = {
            "access_key_id": environment[_ID].strip(),
            "secret_access_key": environment[_SECRET].strip(),
            "token": token.strip() or None,
            "expires_at": None,
        }

    def __repr__(self) -> str:
        return "<EnvironmentCredentials>"

    def __call__(self) -> Credential:
        """Return the pair. It never expires."""
        return self._found


class ChainCredentials:
    """Credentials of boto3's chain.

    The chain has profiles, SSO, assumed roles, `credential_process`, containers, web identity, and
    the machine's role, which takes a second or two.

    Safe to call from any thread. boto3 is imported at the first call.
    """

    def __init__(self) -> None:
        """Read nothing yet."""
        self._lock = Lock()
        self._session: Any = None
        self._credentials: Any = None
        self.failure: NoCredentials | None = None
        """Error of the last call; None after a successful one."""

    def __repr__(self) -> str:
        return "<ChainCredentials>"

    def __call__(self) -> Credential:
        """Return credentials that are valid now. Blocking: files, programs, HTTP.

        Raises:
            NoCredentials: there are none, or a profile, role or token file is wrong.
        """
        with self._lock:
            try:
                found = self._frozen()
            except NoCredentials as error:
                self.failure = error
                raise
            self.failure = None
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token or None,
            "expires_at": datetime.now(UTC) + timedelta(seconds=REFRESH_S),
        }

    @property
    def source(self) -> str:
        """Source of the last credentials, by boto3's name."""
        return str(getattr(self._credentials, "method", "") or "boto3's chain")

    def region(self) -> str:
        """Return the region of the profile; "" if it has none or does not exist. Blocking."""
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - a tenth of a second

        with self._lock:
            try:
                return str(self._opened().get_config_variable("region") or "")
            except BotoCoreError:
                return ""  # the first request reports the error

    def _opened(self) -> Any:  # noqa: ANN401 - botocore has no types
        if self._session is None:
            import botocore.session  # noqa: PLC0415 - a tenth of a second

            self._session = botocore.session.get_session()
        return self._session

    def _frozen(self) -> Any:  # noqa: ANN401 - botocore has no types
        try:
            from botocore.credentials import RefreshableCredentials  # noqa: PLC0415 - as above
        except ImportError as error:
            raise NoCredentials(
                "no credentials are in the environment, and boto3 is not installed, which finds "
                "others: pip install 'tieredstore[s3]'"
            ) from error
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above

        try:
            if not isinstance(self._credentials, RefreshableCredentials):
                self._session = None  # a file may have new keys
                self._credentials = self._opened().get_credentials()
            if self._credentials is not None:
                return self._credentials.get_frozen_credentials()
        except (BotoCoreError, OSError, ValueError, KeyError) as error:
            self._credentials = None
            why = " ".join(str(error).split()) or type(error).__name__
            raise NoCredentials(
                f"the AWS credential chain failed ({type(error).__name__}: {why}); check "
                f"AWS_PROFILE, ~/.aws and the AWS_ variables of this process"
            ) from error
        profile = os.environ.get("AWS_PROFILE", "")
        raise NoCredentials(
            f"no credentials were found{f' for the profile {profile!r}' if profile else ''}, in "
            f"the environment, in ~/.aws, from a container or from this machine's role; set "
            f"{_ID} and {_SECRET}, or AWS_PROFILE"
        )


def credentials_of(environment: Mapping[str, str]) -> "EnvironmentCredentials | ChainCredentials":
    """Return the credential provider of this process. Reads only the environment."""
    if environment.get(_ID) and environment.get(_SECRET):
        return EnvironmentCredentials(environment)
    return ChainCredentials()


SAID_CHARACTERS_MAX: Final = 400
Operation = Literal[
    "PutObject", "GetObject", "HeadObject", "CopyObject", "ListObjectsV2", "DeleteObject"
]
_PERMISSIONS: Final[Mapping[Operation, str]] = {
    "PutObject": "s3:PutObject",
    "GetObject": "s3:GetObject, and s3:ListBucket, without which a missing object is a refusal",
    "HeadObject": "s3:GetObject, and s3:ListBucket, without which a missing object is a refusal",
    "CopyObject": "s3:GetObject and s3:PutObject",
    "ListObjectsV2": "s3:ListBucket",
    "DeleteObject": "s3:DeleteObject; object lock and retention of the bucket refuse it, too",
}
Trouble = Literal[
    "",
    "credentials",
    "refused",
    "host",
    "timeout",
    "untrusted",
    "expired",
    "plain",
    "broken",
    "odd",
]
"""Cause of a missing reply, in order: none, no credentials, connection refused, host unknown,
timeout, certificate not trusted, certificate not valid now, port without TLS, connection broken,
reply not of S3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Bucket and service, for error sentences."""

    endpoint: str
    """URL of the service; empty: AWS."""
    bucket: str
    region: str = ""
    """Region that requests are signed for."""
    proxy: str = ""
    """URL of the proxy; empty: none."""

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} at {self.endpoint or 'AWS S3'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failed request."""

    status: int = 0
    """HTTP status; 0 without a reply."""
    code: str = ""
    region: str = ""
    """Region of the bucket, if the service reports it."""
    trouble: Trouble = ""
    said: str = field(default="", compare=False)
    """Line of text of the service or the library, for operators."""


_NEVER_HERE: Final[Mapping[str, str]] = {
    "SecondLevelDomainForbidden": "the service wants the bucket in the host's name; set "
    "objectStoreAddressing=VIRTUAL",
    "InvalidObjectState": "the object was moved to an archive; restore it, and end the life-cycle "
    "rule that moves objects below this prefix",
    "MethodNotAllowed": "this endpoint does not do that; check objectStoreEndpoint",
    "InvalidBucketName": "the bucket has a name that no bucket can have; check the URL of the tier",
}
"""Permanent refusals and their remedies, by code."""
REMEDIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenExpired", "TokenRefreshRequired"),
        "the session's token is over; renew it",
    ),
    **dict.fromkeys(
        ("AccountProblem", "AllAccessDisabled", "NotSignedUp", "UserDisable"),
        "the account may not use the service now; ask its provider",
    ),
    "InvalidAccessKeyId": "it knows no such access key; check the credentials and their account",
    "InvalidToken": "the session's token is not valid; check AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "this host's clock is wrong, or its own is; check NTP",
    "RequestExpired": "this host's clock is wrong, or its own is; check NTP",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "QuotaExceeded": "the quota is used up; raise it",
}
"""Refusals that may end by themselves, and their remedies, by code."""
_REGION: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_PASSING: Final = frozenset(
    {
        "BadDigest",
        "ChecksumMismatch",
        "IncompleteBody",
        "InvalidDigest",
        "RequestTimeout",
        "SlowDown",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)
"""Codes with status 400 or 403 of requests that were damaged in transfer or came too fast."""
_THROTTLED: Final = re.compile("Throttl|LimitExceeded|TooManyRequests")
"""Codes of requests that came too fast, which AWS's services also send with status 400."""
_OF_KEY: Final = "KMS."
_PASSING_STATUS: Final = frozenset({307, 408, 409, 425, 429, 499})


@asynccontextmanager
async def os_errors(
    path: str, place: Place, operation: Operation, total_s_max: float
) -> AsyncGenerator[None]:
    """Limit the block to `total_s_max` seconds, and translate failed requests into `OSError`s.

    Raises:
        NoPlace: there is no such bucket.
        FileNotFoundError: there is no such object.
        FileExistsError: the condition of a write was certainly refused.
        PermissionError: the service refuses the credentials or their permissions.
        OSError: EOPNOTSUPP if the service refuses such requests permanently. With any other number
            the outcome of a write is unknown.
        TimeoutError: no reply in time; the outcome of a write is unknown.
    """
    try:
        async with asyncio.timeout(total_s_max):
            yield
    except TimeoutError as error:
        raise failed(Failure(trouble="timeout"), path, place, operation) from error
    except NoCredentials as error:
        raise failed(
            Failure(trouble="credentials", said=str(error)), path, place, operation
        ) from error
    except (BaseError, FileNotFoundError) as error:
        if isinstance(error, FileNotFoundError) and error.errno is not None:
            raise  # already translated, or raised by Python
        raise failed(failure_of(str(error)), path, place, operation) from error


def failed(failure: Failure, path: str, place: Place, operation: Operation) -> OSError:
    """Return the `OSError` for a failed request. Pure."""
    status, code = failure.status, failure.code
    if status == HTTPStatus.NOT_FOUND or code == "NoSuchBucket":
        if code == "NoSuchBucket" or operation in {"ListObjectsV2", "PutObject"}:
            return NoPlace(
                errno.ENOENT,
                f"there is no {place}; create the bucket, or check the URL of the tier and "
                f"objectStoreEndpoint",
                path,
            )
        return FileNotFoundError(errno.ENOENT, "there is no such object", path)
    if status == HTTPStatus.PRECONDITION_FAILED and operation == "PutObject":
        return FileExistsError(errno.EEXIST, "the name is taken", path)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return OSError(errno.ERANGE, "the object ends before the range begins", path)
    number, why = _reason(failure, place, operation)
    shown = " ".join(filter(None, (str(status or ""), code)))
    reason = f"{operation} in {place} failed: {why}{f' ({shown})' if shown else ''}"
    return OSError(number, reason, path)  # Python chooses the subclass by the number


def _reason(failure: Failure, place: Place, operation: Operation) -> tuple[int, str]:
    """Return the error number, and the reason with its remedy. Pure."""
    status, code = failure.status, failure.code
    said_why = failure.said or "it gives no reason"
    if failure.trouble:
        found = _unanswered(failure, place)
    elif code in _REGION or (not code and status in {301, 302, 308}):
        right = f"it is in region {failure.region!r}" if failure.region else "it is elsewhere"
        signed = f", and requests are signed for {place.region!r}" if place.region else ""
        found = errno.EOPNOTSUPP, f"{right}{signed}; set objectStoreRegion or AWS_REGION"
    elif code in _NEVER_HERE:
        found = errno.EOPNOTSUPP, _NEVER_HERE[code]
    elif code in REMEDIES:
        found = errno.EACCES, REMEDIES[code]
    elif status == HTTPStatus.CONFLICT and operation == "PutObject":
        why = "another write was under way, which left open whether this one took place"
        found = errno.EAGAIN, f"it wants that request again: {why}"
    elif code in _PASSING or status in _PASSING_STATUS or _THROTTLED.search(code):
        found = errno.EAGAIN, f"it wants that request again: {said_why}"
    elif code.startswith(_OF_KEY):
        found = errno.EACCES, "its KMS key cannot be used; check the key and objectStoreKmsKeyId"
    elif status in {401, 403}:
        found = (
            errno.EACCES,
            (
                f"these credentials may not do this; allow {_PERMISSIONS[operation]}; "
                f"objectStoreRequesterPays=true is for buckets whose readers pay"
            ),
        )
    elif status == HTTPStatus.NOT_IMPLEMENTED or status // 100 in {2, 3, 4}:
        cure = _CURES.get(operation, "check objectStoreEndpoint")
        found = errno.EOPNOTSUPP, f"the service does not take such a request: {said_why}; {cure}"
    else:
        found = errno.EIO, f"the service has trouble: {said_why}"
    return found


_CURES: Final[Mapping[str, str]] = {
    "PutObject": "objectStoreUploadChecksum=NONE may help; without create-if-absent "
    "(If-None-Match) it can hold no tier"
}


def _unanswered(failure: Failure, place: Place) -> tuple[int, str]:
    way = f" through the proxy {place.proxy}" if place.proxy else ""
    proxy = ", HTTPS_PROXY" if place.proxy else ""
    by_trouble: Mapping[str, tuple[int, str]] = {
        "credentials": (errno.EACCES, f"nothing was sent, for {failure.said}"),
        "timeout": (errno.ETIMEDOUT, f"S3 did not answer in time{way}"),
        "refused": (
            errno.ECONNREFUSED,
            (
                f"the connection{way} was refused; check objectStoreEndpoint or "
                f"AWS_ENDPOINT_URL{proxy}, and the service"
            ),
        ),
        "host": (
            errno.EHOSTUNREACH,
            (
                f"the host is unknown{way}; check objectStoreEndpoint or "
                f"AWS_ENDPOINT_URL{proxy}, and DNS"
            ),
        ),
        "untrusted": (
            errno.EOPNOTSUPP,
            "its TLS certificate is not trusted; set objectStoreCaBundle or AWS_CA_BUNDLE",
        ),
        "expired": (
            errno.EACCES,
            "its TLS certificate is not valid now; renew it, or check this host's clock",
        ),
        "plain": (
            errno.EOPNOTSUPP,
            "the port answers without TLS; check objectStoreEndpoint, which begins with https://",
        ),
        "odd": (errno.EOPNOTSUPP, f"its reply is none of S3: {failure.said}"),
    }
    broken = errno.ECONNRESET, f"the connection{way} broke: {failure.said}"
    return by_trouble.get(failure.trouble, broken)


# Errors of obstore

_DEBUG: Final = "\n\nDebug source:"
_STATUS: Final = re.compile(r"^\s+status: (\d{3}),$", re.MULTILINE)
_CODE: Final = re.compile(r"<Code>([\w.]{1,64})</Code>")
_OF_REGION: Final = re.compile(r"<Region>([\w-]{1,64})</Region>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,400})</Message>")
_UNDELETED: Final = re.compile(
    r'^\s+source: DeleteFailed \{$.*?^\s+code: "(\w+)"', re.MULTILINE | re.DOTALL
)
_PROVIDER: Final = re.compile(r'^Unauthenticated \{\n\s+path: "External AWS', re.MULTILINE)
_KIND: Final = re.compile(r"^\s+inner: Http\(\n\s+HttpError \{\n\s+kind: (\w+),$", re.MULTILINE)
_NOT_S3: Final = re.compile(r"^\s+source: (MissingEtag|Metadata|NotPartial)\b", re.MULTILINE)
_TROUBLES: Final[tuple[tuple[re.Pattern[str], Trouble], ...]] = (
    (re.compile(r"^\s+kind: ConnectionRefused,$", re.MULTILINE), "refused"),
    (re.compile(r'^\s+"dns error",$', re.MULTILINE), "host"),
    (re.compile(r"^\s+(Expired|NotValidYet)\w*\b", re.MULTILINE), "expired"),
    (re.compile(r"^\s+(InvalidCertificate\(|CaUsedAsEndEntity)", re.MULTILINE), "untrusted"),
    (re.compile(r"^\s+InvalidContentType,$", re.MULTILINE), "plain"),
)
"""Patterns of lines in the library's debug text. Foreign text in it has no lines of its own."""


def failure_of(text: str) -> Failure:
    """Parse the text of an obstore error: a sentence and a structured debug text. Pure."""
    shown, _, debug = text.partition(_DEBUG)
    line = said(shown)
    if found := _STATUS.search(debug):
        return reply_of(int(found[1]), shown.partition("status code:")[2])
    if found := _UNDELETED.search(debug):
        return Failure(status=HTTPStatus.FORBIDDEN, code=found[1], said=line)
    if "inner: BareRedirect," in debug:
        return Failure(status=HTTPStatus.MOVED_PERMANENTLY, said=line)
    if _PROVIDER.search(debug):
        return Failure(trouble="credentials", said=line.rpartition("NoCredentials: ")[2])
    return Failure(trouble=_trouble(debug), said=line)


def _trouble(debug: str) -> Trouble:
    found = _KIND.search(debug)
    if found is None:
        return "odd" if _NOT_S3.search(debug) else "broken"
    if found[1] == "Timeout":
        return "timeout"
    for pattern, kind in _TROUBLES:
        if pattern.search(debug):
            return kind
    return "broken"


def reply_of(status: int, body: str) -> Failure:
    """Parse a failed reply. Pure."""
    code, region, message = (one.search(body) for one in (_CODE, _OF_REGION, _MESSAGE))
    return Failure(
        status=status,
        code=code[1] if code else "",
        region=region[1] if region else "",
        said=said(message[1]) if message else "",
    )


def said(text: str) -> str:
    """Shorten the text of a service or a library to one line without query strings. Pure."""
    line = " ".join(re.sub(r"\?\S+", "?...", text).split())
    return line if len(line) <= SAID_CHARACTERS_MAX else f"{line[:SAID_CHARACTERS_MAX]}..."
