"""Configuration of a tier in an object store: place, defaults, endpoint and credentials."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Self
from urllib.parse import urlsplit

from provider.encryption.keys import MasterKeys
from provider.names import ENDPOINT_VARIABLES, is_loopback
from tieredstore.config.keys import SCHEME
from tieredstore.config.location import second_place, without_alias
from tieredstore.config.sources import ConfigError, Setting, environment_name

PLACE, BUCKET = "tieredStoreFilePath", "objectStoreBucket"
ACCESS_KEY, SECRET_KEY = "objectStoreAccessKey", "objectStoreSecretKey"
MASTER_KEYS = "objectStoreEncryptionKeys"
ENDPOINT, ALLOW_HTTP = "objectStoreEndpoint", "objectStoreAllowHttp"
ENCRYPTION = "objectStoreServerSideEncryption"
OF_BUCKET = "BUCKET"
NO_CHECKSUM = "NONE"
OBJECT_ORIGIN = "default in an object store"
READING = "readAhead"
"""Prefix of the keys of reading."""

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_WITHIN = {
    "tieredStoreGroupCommitSize": "tieredStoreBytesInFlight",
    "tieredStoreGroupCommitCount": "tieredStoreWaitingMax",
    "readAheadMessageSizeThreshold": "readAheadCacheSize",
}
"""Keys whose default must not exceed the given value of another key."""


def tier_place(settings: Mapping[str, Setting]) -> str:
    """The tier's path or URL as it was given; "" if it was not.

    Raises:
        ConfigError: a path and a bucket were given, or two buckets.
    """
    place, bucket = settings[PLACE], settings[BUCKET]
    path, name = without_alias(str(place.value)), str(bucket.value)
    if not name:
        return path
    if not path:
        return f"{SCHEME}://{name}"
    if not path.startswith(f"{SCHEME}://{name}/") and path != f"{SCHEME}://{name}":
        raise ConfigError(
            f"{PLACE} ({place.origin}) names {path}, and {BUCKET} ({bucket.origin}) the bucket "
            f"{name}: give only {PLACE}, such as {SCHEME}://{name}/PREFIX for that bucket"
        )
    return path


def is_object_store(settings: Mapping[str, Setting]) -> bool:
    """Whether the tier is in an object store, as far as it was named at all."""
    path, bucket = str(settings[PLACE].value), str(settings[BUCKET].value)
    return _is_url(path) if path else bool(bucket)


def reads_objects(settings: Mapping[str, Setting]) -> bool:
    """Whether the tier or its second store is in an object store."""
    return is_object_store(settings) or _is_url(second_place(settings))


def _is_url(place: str) -> bool:
    url = _URL.match(place)
    return url is not None and url[1].lower() != "file"


def object_defaults(settings: Mapping[str, Setting], default_origin: str) -> dict[str, Setting]:
    """Return the settings without a given value whose default differs in an object store.

    For a tier in a directory with a second store there, only those of reading.
    """
    if not reads_objects(settings):
        return {}
    only = "" if is_object_store(settings) else READING
    changed = {
        name: replace(one, value=one.key.object_default, origin=OBJECT_ORIGIN)
        for name, one in settings.items()
        if name.startswith(only)
        and one.origin == default_origin
        and one.key.object_default is not None
    }
    for name, bound in _WITHIN.items():
        if name in changed and bound not in changed:
            most = min(int(changed[name].value), int(settings[bound].value))
            changed[name] = replace(changed[name], value=most)
    return changed


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """Endpoint, credentials and encryption of an object store. Its text has no secret."""

    endpoint: str = ""
    region: str = ""
    allow_http: bool = False
    """Whether an `http://` endpoint may be used; always so on this host."""
    encryption: str = ""
    """Server-side encryption requested for each object; "" for that of the bucket."""
    kms_key_id: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    virtual_hosted: bool = False
    requester_pays: bool = False
    upload_checksum: str = "CRC64NVME"
    """"" sends none."""
    ca_bundle: str = ""
    proxy: str = field(default="", repr=False)
    master_keys: MasterKeys | None = None
    """Master keys of encryption before the upload; None without it."""
    sends_plain: bool = False
    """Whether objects may change on their way unnoticed: neither TLS nor encryption covers them."""

    @classmethod
    def of(cls, settings: Mapping[str, Setting], environment: Mapping[str, str]) -> Self:
        """From effective settings, and secrets from the environment.

        Raises:
            ConfigError: the endpoint is no URL, or reached without TLS although that was not
                allowed; only one of the two keys was given; master keys are not written as such,
                or given for a tier in a directory.
        """
        endpoint = str(settings[ENDPOINT].value)
        if endpoint and "://" not in endpoint:  # as RocketMQ's own configurations have it
            endpoint = f"https://{endpoint}"
        endpoint = endpoint.rstrip("/")
        may_http = bool(settings[ALLOW_HTTP].value)
        if endpoint:
            may_http = _checked(endpoint, settings[ENDPOINT].origin, may_http=may_http)
        keys = [environment.get(environment_name(name), "") for name in (ACCESS_KEY, SECRET_KEY)]
        if bool(keys[0]) != bool(keys[1]):
            names = " and ".join(environment_name(name) for name in (ACCESS_KEY, SECRET_KEY))
            raise ConfigError(f"{names} belong together: set both, or none of them")
        if is_object_store(settings):
            _load_drivers(tier_place(settings))
        if "://" in (second := second_place(settings)):
            _load_drivers(second)
        masters = _master_keys(settings, environment.get(environment_name(MASTER_KEYS), ""))
        urls = [one for one in (tier_place(settings), second_place(settings)) if "://" in one]
        encryption = str(settings[ENCRYPTION].value)
        checksum = str(settings["objectStoreUploadChecksum"].value)
        return cls(
            endpoint,
            str(settings["objectStoreRegion"].value),
            may_http,
            "" if encryption == OF_BUCKET else encryption,
            str(settings["objectStoreKmsKeyId"].value),
            access_key=keys[0].strip(),
            secret_key=keys[1].strip(),
            virtual_hosted=settings["objectStoreAddressing"].value == "VIRTUAL",
            requester_pays=bool(settings["objectStoreRequesterPays"].value),
            upload_checksum="" if checksum == NO_CHECKSUM else checksum,
            ca_bundle=str(settings["objectStoreCaBundle"].value),
            proxy=str(settings["objectStoreProxy"].value),
            master_keys=masters,
            sends_plain=masters is None
            and not all(
                without_alias(one).startswith(f"{SCHEME}://") and _has_tls(endpoint, environment)
                for one in urls
            ),
        )


def _has_tls(endpoint: str, environment: Mapping[str, str]) -> bool:
    """Whether S3 is reached by TLS, as it is without an endpoint. Pure."""
    found = endpoint or next(filter(None, map(environment.get, ENDPOINT_VARIABLES)), "")
    return not found.lower().startswith("http://")


def _load_drivers(place: str) -> None:
    """Import the drivers of such a tier before an event loop runs: some tenths of a second.

    A missing package is an error of the opening of the tier, not of this call.
    """
    with suppress(ImportError):
        import_module("provider.object.store")
        if without_alias(place).startswith(f"{SCHEME}://"):
            import_module("provider.s3.file_system")


def _master_keys(settings: Mapping[str, Setting], text: str) -> MasterKeys | None:
    if not text.strip():
        return None
    variable = environment_name(MASTER_KEYS)
    in_url = is_object_store(settings) or "://" in second_place(settings)
    if tier_place(settings) and not in_url:
        raise ConfigError(
            f"{variable} encrypts what lies in an object store, and {PLACE} names a directory: "
            f"encrypt the file system there"
        )
    try:
        return MasterKeys.parse(text)
    except ValueError as error:
        raise ConfigError(f"{variable}: {error}") from error


def _checked(endpoint: str, origin: str, *, may_http: bool) -> bool:
    """Whether the endpoint is reached without TLS.

    Raises:
        ConfigError: it is no URL, holds a secret, or may not be reached so.
    """
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise ConfigError(f"{ENDPOINT} ({origin}) holds what may be a secret: name the host alone")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
        raise ConfigError(f"{ENDPOINT} ({origin}) is a URL such as https://s3.example.com")
    if parts.scheme == "https":
        return False
    if not may_http and not is_loopback(parts.hostname):
        raise ConfigError(
            f"{ENDPOINT} ({origin}) is reached without TLS, so credentials and messages could be "
            f"read on their way: use https://, or set {ALLOW_HTTP}=true"
        )
    return True
