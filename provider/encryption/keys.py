"""The keys of an encrypted storage: master keys, which its user keeps, and data keys under them.

A data key is 32 random bytes. It lies in the storage, wrapped by a master key, as the object
`@keys/<id>/<name of the master key>`; its id is 4 random bytes, hexadecimal. Such an object is
JSON: `format` (1), `nonce` and `wrapped` (base64; AES-256-GCM of the data key, with the data key's
id as associated data). Wrapping all data keys under another master key changes no other object.
"""

import asyncio
import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

from provider.encryption.frames import KEY_ID_BYTES, NONCE_BYTES, Cipher
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, Unavailable
from provider.object_store import ObjectStore

KEYS_PREFIX: Final = "@keys/"
FORMAT: Final = 1
_KEY_BYTES = 32
_MASTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WRAP = re.compile(rf"{KEYS_PREFIX}([0-9a-f]{{{2 * KEY_ID_BYTES}}})/({_MASTER_NAME.pattern})\Z")


@dataclass(frozen=True, slots=True)
class MasterKeys:
    """Named keys of 32 bytes; the first one wraps what is new. Its text has no key."""

    keys: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `NAME:BASE64,NAME:BASE64`.

        Raises:
            ValueError: it is written otherwise; the text is not repeated.
        """
        keys: dict[str, bytes] = {}
        given = [one.strip() for one in text.split(",") if one.strip()]
        for number, one in enumerate(given, 1):
            name, _, encoded = one.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                key = b""
            if not _MASTER_NAME.fullmatch(name) or len(key) != _KEY_BYTES or name in keys:
                raise ValueError(
                    f"master key {number} is not NAME:BASE64 with a name of its own (letters, "
                    f"digits, '.', '_' and '-') and the base64 of {_KEY_BYTES} bytes"
                )
            keys[name] = key
        if not keys:
            raise ValueError("there is no master key")
        return cls(keys)

    @property
    def current(self) -> str:
        """Name of the master key that wraps what is new."""
        return next(iter(self.keys))


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """What `rewrap` found of one data key, and did."""

    key_id: str
    was_under: tuple[str, ...]
    """Names of the master keys that it was wrapped by."""
    under: str
    """Name of the only one now."""


class KeyRing:
    """The data keys of one storage, read when one is first needed. Memory: 100 bytes a key."""

    def __init__(self, store: ObjectStore, masters: MasterKeys, *, held: str) -> None:
        """`held` is a prefix below which a storage that holds anything has objects."""
        self._store = store
        self._masters = masters
        self._held = held
        self._keys: dict[bytes, bytes] = {}
        self._current: bytes | None = None
        self._ciphers: dict[tuple[bytes, str], Cipher] = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<KeyRing: {len(self._keys)} data keys>"

    async def for_writing(self) -> bytes:
        """Id of the data key for new objects. At first a listing and a read, or two creates more.

        Raises:
            Denied: the storage holds objects that are not encrypted, or keys that we cannot open.
            Unavailable: try again.
        """
        async with self._lock:
            if self._current is None:
                await self._load()
            if self._current is None:
                self._current = await self._begin()
        return self._current

    async def know(self, key_ids: set[bytes], name: str) -> None:
        """Have the data keys of these ids, read from the storage if they are new.

        Raises:
            Denied: the storage is encrypted under other master keys.
            Corrupt: there is no data key of that id; `name` is the object that has it.
        """
        if key_ids <= self._keys.keys():
            return
        async with self._lock:
            if not key_ids <= self._keys.keys():
                await self._load()
        if not key_ids <= self._keys.keys():
            reason = "an object is not encrypted, or its data key is lost"
            raise Corrupt(reason, name)

    def cipher(self, key_id: bytes, name: str) -> Cipher:
        """The cipher of one object under a known data key; 10 us at first, then remembered."""
        found = self._ciphers.get((key_id, name))
        if found is None:
            if len(self._ciphers) >= CIPHERS_MAX:
                self._ciphers.clear()
            found = self._ciphers[key_id, name] = _object_cipher(self._keys[key_id], name)
        return found

    async def _load(self) -> None:
        wraps = await wraps_in(self._store)
        for key_id, names in wraps.items():
            known = next((name for name in self._masters.keys if name in names), None)
            if known is None:
                raise Denied(
                    f"it is encrypted under the master key {' or '.join(sorted(names))}, which "
                    "was not given",
                    f"{KEYS_PREFIX}{key_id}",
                )
            try:
                key = await _unwrapped(self._store, key_id, known, self._masters.keys[known])
            except NotFound as error:  # must not look as if the object that we read were gone
                reason = "data keys are being wrapped by another master key; try again"
                raise Unavailable(reason, f"{KEYS_PREFIX}{key_id}") from error
            self._keys[bytes.fromhex(key_id)] = key
            if known == self._masters.current:
                self._current = bytes.fromhex(key_id)

    async def _begin(self) -> bytes:
        if not self._keys and await self._store.list(self._held):
            raise Denied(
                "it holds objects that are not encrypted: an encrypted tier begins empty", ""
            )
        key_id, key = os.urandom(KEY_ID_BYTES), os.urandom(_KEY_BYTES)
        current = self._masters.current
        await _wrap(self._store, key_id.hex(), key, current, self._masters.keys[current])
        self._keys[key_id] = key
        return key_id


CIPHERS_MAX: Final = 1024
"""Objects whose ciphers are remembered."""


async def wraps_in(store: ObjectStore) -> dict[str, list[str]]:
    """Ids of all data keys, each with the names of the master keys that wrap it. One listing."""
    wraps: dict[str, list[str]] = {}
    for entry in await store.list(KEYS_PREFIX):
        if found := _WRAP.match(entry.name):
            wraps.setdefault(found[1], []).append(found[2])
    return wraps


async def rewrap(
    store: ObjectStore, masters: MasterKeys, *, dry_run: bool = False
) -> Sequence[Rewrapped]:
    """Wrap every data key under the first master key, and forget it under all others.

    A wrap is read back and opened before any other one is deleted, so a crash at any point leaves
    each data key with a wrap; call it again. Four requests a data key. Processes that run with
    the old master key alone can start no more; those that run go on.

    Raises:
        Denied: a data key is wrapped by master keys of which none was given; nothing is changed.
        Corrupt: a wrap cannot be opened; nothing more is changed.
    """
    wraps = await wraps_in(store)
    keys: dict[str, bytes] = {}
    for key_id, names in wraps.items():
        known = next((name for name in masters.keys if name in names), None)
        if known is None:
            raise Denied(
                f"data key {key_id} is wrapped by {' and '.join(sorted(names))}, which was not "
                "given",
                f"{KEYS_PREFIX}{key_id}",
            )
        keys[key_id] = await _unwrapped(store, key_id, known, masters.keys[known])
    done: list[Rewrapped] = []
    current = masters.current
    for key_id, key in keys.items():
        others = [name for name in wraps[key_id] if name != current]
        done.append(Rewrapped(key_id, tuple(sorted(wraps[key_id])), current))
        if dry_run:
            continue
        if current not in wraps[key_id]:
            await _wrap(store, key_id, key, current, masters.keys[current])
        if others:
            await store.delete([_wrap_name(key_id, name) for name in others])
    return done


def _wrap_name(key_id: str, master: str) -> str:
    return f"{KEYS_PREFIX}{key_id}/{master}"


async def _wrap(store: ObjectStore, key_id: str, key: bytes, master: str, wrapping: bytes) -> None:
    """Store a data key under a master key, and see that it can be opened."""
    nonce = os.urandom(NONCE_BYTES)
    sealed = _aes_gcm(wrapping).encrypt(nonce, key, key_id.encode())
    fields = {
        "format": FORMAT,
        "nonce": base64.b64encode(nonce).decode(),
        "wrapped": base64.b64encode(sealed).decode(),
    }
    with suppress(AlreadyExists):  # an earlier attempt's is opened below
        await store.create(_wrap_name(key_id, master), [json.dumps(fields).encode()])
    if await _unwrapped(store, key_id, master, wrapping) != key:
        raise Corrupt("the storage has another data key of this id", _wrap_name(key_id, master))


async def _unwrapped(store: ObjectStore, key_id: str, master: str, wrapping: bytes) -> bytes:
    """A data key.

    Raises:
        Corrupt: it is not what was wrapped by that master key.
        Denied: it is in a newer format.
    """
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra has it

    name = _wrap_name(key_id, master)
    text = bytes(await store.read(name))
    try:
        fields = cast("dict[str, Any]", json.loads(text))
        if fields["format"] != FORMAT:
            raise Denied(f"format {fields['format']} of data keys is newer than this program", name)
        nonce, sealed = (base64.b64decode(fields[part]) for part in ("nonce", "wrapped"))
        return _aes_gcm(wrapping).decrypt(nonce, sealed, key_id.encode())
    except (ValueError, KeyError, TypeError, InvalidTag) as error:
        reason = f"a data key cannot be opened with the master key {master}: another key, or damage"
        raise Corrupt(reason, name) from error


def _aes_gcm(key: bytes) -> Cipher:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM(key)


def _object_cipher(key: bytes, name: str) -> Cipher:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - as above

    derived = HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"tieredstore object " + name.encode())
    return _aes_gcm(derived.derive(key))
