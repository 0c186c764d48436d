"""Diagnosis of a bucket, by boto3 and by requests of our own."""

# boto3 has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import SystemRandom
from typing import Any

from provider.clock import SystemClock
from provider.errors import Denied
from provider.object.store import FsspecStore
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.diagnosis.directory import Grade, Line, taken_latency, tried_calls, tried_promises
from tieredstore.session.places import s3_options

SKEW_S_MAX = 60.0
"""S3 refuses requests from a quarter of an hour on."""
ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_ABSENT = frozenset({"404", "NoSuchBucket"})
_NOT_SET = frozenset(
    {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError", "NoSuchBucketPolicy"}
)

Answer = Mapping[str, Any]


async def diagnose_requests(store: FsspecStore) -> list[Line]:
    """Diagnose the service by requests of our own. Leaves no object, if deletions are allowed.

    Raises:
        Unavailable: the service does not answer.
    """
    rng = SystemRandom()
    lines = await tried_calls(store)
    if all(line.grade is Grade.GOOD for line in lines):
        lines.append(await tried_promises(store, rng=rng))
        lines.append(await taken_latency(store, clock=SystemClock()))
    return lines


def diagnose_bucket(config: Config, place: TierUrl) -> list[Line]:
    """Diagnose a bucket by the answers of the service. Blocks. Writes nothing.

    Ends with the line of an endpoint, of credentials or of a bucket without which nothing works.

    Raises:
        Denied: boto3 is not installed, or no credentials are found.
    """
    bucket, _, prefix = place.place.partition("/")
    asked = _Questions(config, bucket)
    lines = [asked.identity(), *asked.bucket_and_clock(prefix)]
    if lines[-1].is_final:
        return lines
    rules = asked.rules()
    versioning = asked.answer("get_bucket_versioning", "s3:GetBucketVersioning")
    lines.append(judge_versioning(versioning, rules, prefix))
    lines.append(
        judge_lock(
            asked.answer("get_object_lock_configuration", "s3:GetBucketObjectLockConfiguration")
        )
    )
    lines += judge_rules(rules, prefix)
    uploads = asked.answer("list_multipart_uploads", "s3:ListBucketMultipartUploads", Prefix=prefix)
    lines.append(judge_uploads(uploads, rules, prefix))
    return lines


class _Questions:
    """A bucket and the client that asks about it, by the settings that our own requests have."""

    def __init__(self, config: Config, bucket: str) -> None:
        try:
            from boto3.session import Session  # noqa: PLC0415 - an extra has it
            from botocore.config import Config as ClientConfig  # noqa: PLC0415 - likewise
            from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - likewise

            from provider.s3.errors import ChainCredentials, NoCredentials, credentials_of, sendable  # noqa: PLC0415 - likewise
            from provider.s3.options import S3Options, endpoint_of, proxy_for, proxy_of, region_of  # noqa: PLC0415 - likewise
        except ImportError as error:
            raise Denied(
                "doctor needs boto3 and obstore: pip install 'tieredstore[s3]'", ""
            ) from error
        for name in ("botocore", "botocore.auth", "botocore.endpoint", "botocore.hooks"):
            logging.getLogger(name).setLevel(logging.WARNING)  # at DEBUG they print what is signed
        given = dict(s3_options(config))
        credentials: Any = given.pop("credentials") or credentials_of(os.environ)
        options = S3Options(**given)
        endpoint = endpoint_of(options, os.environ)
        region = region_of(options, os.environ)
        if not region and isinstance(credentials, ChainCredentials):
            region = credentials.region()
        try:
            found: Mapping[str, Any] = sendable(credentials)
        except NoCredentials as error:
            raise Denied(str(error), "") from error
        proxy = proxy_for(
            endpoint or "https://s3.amazonaws.com", *proxy_of(options, endpoint, os.environ)
        )
        self.source = (
            credentials.source if isinstance(credentials, ChainCredentials) else "the environment"
        )
        self.is_aws = not endpoint
        self.bucket = bucket
        self.region = region or "us-east-1"
        keys: dict[str, Any] = {
            "aws_access_key_id": found["access_key_id"],
            "aws_secret_access_key": found["secret_access_key"],
            "aws_session_token": found.get("token"),
            "region_name": self.region,
            "verify": options.ca_bundle or os.environ.get("AWS_CA_BUNDLE") or None,
        }
        style = {"addressing_style": "virtual" if options.virtual_hosted else "path"}
        settings = ClientConfig(
            s3=style,
            proxies={"http": proxy, "https": proxy} if proxy else {},
            connect_timeout=5,
            read_timeout=20,
            retries={"max_attempts": 1},
        )
        self._keys, self._settings = keys, settings
        try:
            self._session: Any = Session()
            self._client: Any = self._session.client(
                "s3", endpoint_url=endpoint or None, config=settings, **keys
            )
        except (BotoCoreError, ValueError) as error:  # a region, a profile or a file of its own
            raise Denied(f"boto3 refuses the settings: {error}", "") from error

    def identity(self) -> Line:
        """Return the account of the credentials, as far as AWS reports it."""
        detail = f"credentials come from {self.source}"
        if not self.is_aws:
            return Line("who we are", Grade.GOOD, detail)
        answer = _asked(
            lambda: self._session.client(
                "sts", config=self._settings, **self._keys
            ).get_caller_identity()
        )
        if isinstance(answer, str):
            return Line(
                "who we are", Grade.NOTE, f"{detail}; STS does not name its owner ({answer})"
            )
        return Line("who we are", Grade.GOOD, f"{answer.get('Arn')}; {detail}")

    def bucket_and_clock(self, prefix: str) -> list[Line]:
        """Bucket, region and clock, by one HEAD; one final line if that is all there is to say."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra has it

        from provider.s3.errors import REMEDIES  # noqa: PLC0415 - an extra

        before = datetime.now(UTC)
        answer: Answer = {}
        try:
            answer = self._client.head_bucket(Bucket=self.bucket)
            refused = ""
        except ClientError as error:
            answer, refused = error.response, str(error.response.get("Error", {}).get("Code", ""))
        except Exception as error:  # noqa: BLE001 - whatever boto3 raises, the line says it
            advice = "check objectStoreEndpoint"
            return [Line("endpoint", Grade.BAD, _short(error), advice, is_final=True)]
        if refused in _ABSENT:
            absent, advice = f"there is no bucket {self.bucket}", "create it, or check its name"
            return [Line("bucket", Grade.BAD, absent, advice, is_final=True)]
        if refused:  # a HEAD has no body, and a refusal no code
            listed = self.answer("list_objects_v2", "s3:ListBucket", Prefix=prefix, Delimiter="/")
            refused = listed if isinstance(listed, str) else refused
        if refused in REMEDIES:
            return [Line("credentials", Grade.BAD, refused, REMEDIES[refused], is_final=True)]
        headers: Mapping[str, str] = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        found = Line("bucket", Grade.GOOD, self.bucket)
        if refused:
            found = Line("bucket", Grade.BAD, f"{self.bucket}: {refused}", "allow s3:ListBucket")
        return [
            found,
            judge_region(headers.get("x-amz-bucket-region", ""), self.region),
            judge_clock(headers.get("date", ""), before),
        ]

    def rules(self) -> "Sequence[Answer] | str":
        """Life-cycle rules, or why they are not known."""
        answer = self.answer("get_bucket_lifecycle_configuration", "s3:GetLifecycleConfiguration")
        return answer if isinstance(answer, str) else list(answer.get("Rules", []))

    def answer(self, call: str, permission: str, **more: str) -> "Answer | str":
        """Return the answer of the service, or a text with the reason for a missing answer."""
        found = _asked(lambda: getattr(self._client, call)(Bucket=self.bucket, **more))
        if isinstance(found, str) and found in _NOT_SET:
            return {}
        return f"{found}; allow {permission}" if found == "AccessDenied" else found


def _asked(call: Callable[[], Any]) -> "Answer | str":
    from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra has it

    try:
        return call()
    except ClientError as error:
        return str(error.response.get("Error", {}).get("Code", "refused"))
    except Exception as error:  # noqa: BLE001 - whatever boto3 raises, the line says it
        return _short(error)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def judge_region(region: str, signed: str) -> Line:
    """The bucket's region beside the one that requests are signed for. Pure."""
    if not region or region == signed:
        return Line("region", Grade.GOOD, signed)
    return Line(
        "region",
        Grade.BAD,
        f"the bucket is in {region}, requests are signed for {signed}",
        f"set objectStoreRegion={region}",
    )


def judge_clock(date: str, now: datetime) -> Line:
    """The service's clock beside this host's. Pure."""
    try:
        skew_s = (parsedate_to_datetime(date) - now).total_seconds()
    except (TypeError, ValueError):
        return Line("clock", Grade.NOTE, "the service does not report its time")
    detail = f"the service's clock is {skew_s:+.0f} s from this host's"
    if abs(skew_s) <= 1:  # the header has whole seconds
        detail = "the service's clock is this host's"
    if abs(skew_s) <= SKEW_S_MAX:
        return Line("clock", Grade.GOOD, detail)
    return Line("clock", Grade.BAD, detail, "set this host's clock (NTP); S3 refuses 15 minutes")


def judge_versioning(answer: "Answer | str", rules: "Sequence[Answer] | str", prefix: str) -> Line:
    """Old versions cost, unless a rule expires them. Pure."""
    if isinstance(answer, str):
        return Line("versioning", Grade.NOTE, f"not known: {answer}")
    status = str(answer.get("Status", "")) or "off"
    if status == "off":
        return Line("versioning", Grade.GOOD, "off")
    known = () if isinstance(rules, str) else _applying(rules, prefix)
    if any("NoncurrentVersionExpiration" in rule for rule in known):
        return Line("versioning", Grade.GOOD, f"{status}, and a rule expires noncurrent versions")
    return Line(
        "versioning",
        Grade.BAD,
        f"{status}: merged, truncated and expired objects stay as noncurrent versions",
        "add a life-cycle rule that expires noncurrent versions below the prefix",
    )


def judge_lock(answer: "Answer | str") -> Line:
    """Report an object lock, which keeps objects that an owner deletes. Pure."""
    if isinstance(answer, str):
        return Line("object lock", Grade.NOTE, f"not known: {answer}")
    found = answer.get("ObjectLockConfiguration", {})
    if found.get("ObjectLockEnabled") != "Enabled":
        return Line("object lock", Grade.GOOD, "off")
    if "Rule" not in found:
        return Line("object lock", Grade.NOTE, "on, without a default retention")
    return Line(
        "object lock",
        Grade.BAD,
        "on, with a default retention",
        "deletions fail or leave versions until it ends: use a bucket without",
    )


def judge_rules(rules: "Sequence[Answer] | str", prefix: str) -> list[Line]:
    """Report life-cycle rules that delete or move objects of a tier. Pure."""
    if isinstance(rules, str):
        return [Line("life-cycle rules", Grade.NOTE, f"not known: {rules}")]
    lines: list[Line] = []
    for rule in _applying(rules, prefix):
        name = str(rule.get("ID", "without a name"))
        ends = rule.get("Expiration", {})
        moves = {str(one.get("StorageClass")) for one in rule.get("Transitions", [])}
        if "Days" in ends or "Date" in ends:
            lines.append(
                Line(
                    "life-cycle rules",
                    Grade.BAD,
                    f"the rule {name!r} deletes objects below the prefix",
                    "end it; retention is tieredStoreFileReservedTime",
                )
            )
        elif moves & ARCHIVES:
            lines.append(
                Line(
                    "life-cycle rules",
                    Grade.BAD,
                    f"the rule {name!r} moves objects to {', '.join(sorted(moves & ARCHIVES))}",
                    "end it: archived objects cannot be read",
                )
            )
    return lines or [
        Line("life-cycle rules", Grade.GOOD, "none deletes or archives objects below the prefix")
    ]


def judge_uploads(answer: "Answer | str", rules: "Sequence[Answer] | str", prefix: str) -> Line:
    """Unfinished multipart uploads are billed and not listed. Pure."""
    if isinstance(answer, str):
        return Line("multipart uploads", Grade.NOTE, f"not known: {answer}")
    number = len(answer.get("Uploads", []))
    known = () if isinstance(rules, str) else _applying(rules, prefix)
    if not number:
        return Line("multipart uploads", Grade.GOOD, "none is unfinished")
    detail = f"{number:,} are unfinished, and billed"
    if any("AbortIncompleteMultipartUpload" in rule for rule in known):
        return Line("multipart uploads", Grade.GOOD, f"{detail} until a rule aborts them")
    return Line(
        "multipart uploads",
        Grade.NOTE,
        detail,
        "add a rule AbortIncompleteMultipartUpload; a tier makes none",
    )


def _applying(rules: Sequence[Answer], prefix: str) -> list[Answer]:
    """Enabled rules that can concern objects below the prefix, which have no tags. Pure."""
    found: list[Answer] = []
    for rule in rules:
        chosen = rule.get("Filter", {})
        both = chosen.get("And", {})
        begins = str(chosen.get("Prefix") or both.get("Prefix") or rule.get("Prefix") or "")
        has_tags = "Tag" in chosen or "Tags" in both
        overlaps = f"{prefix}/".startswith(begins) or begins.startswith(f"{prefix}/")
        if rule.get("Status") == "Enabled" and not has_tags and overlaps:
            found.append(rule)
    return found
