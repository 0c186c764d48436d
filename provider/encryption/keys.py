"""Keys of an encrypted storage: master keys, which its user keeps, and data keys under them.

A data key is 32 random bytes. The storage has it, wrapped by a master key, as the object
`@keys/<id>/<name of the master key>`; its id is 4 random bytes, hexadecimal. Such an object is
JSON: `format` (2), `tier`, `reads_older`, `nonce` and `wrapped` (base64; AES-256-GCM of the data
key). Associated data are `tieredstore data key 2`, a zero byte, the id, the tier, and a byte 1 or 0
for `reads_older`. Wrapping all data keys under another master key changes no other object.

`tier` is 16 random bytes, hexadecimal, the same in all wraps of one storage: its first writers
agree on it by `@keys/tier`. Data keys in a wrap of format 1 are bound to no tier (its associated
data is the id), and objects under them are in the older form. If `reads_older` is false in any
wrap, they are refused: the storage began in the newer form, or was moved to it.
"""

import asyncio
import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, cast

from provider.encryption.frames import (
    FRAME_BYTES,
    KEY_ID_BYTES,
    NONCE_BYTES,
    Cipher,
    ObjectKey,
    content_bytes,
    key_ids,
)
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, Unavailable
from provider.object_store import ObjectEntry, ObjectStore
from provider.ranges import ByteRange

KEYS_PREFIX: Final = "@keys/"
TIER_NAME: Final = f"{KEYS_PREFIX}tier"
"""Object by which the first writers of a storage agree on `tier`. JSON: `format` (1), `tier`."""
OLDER_FORMAT: Final = 1
FORMAT: Final = 2
_KEY_BYTES = 32
_TIER_BYTES = 16
_MASTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WRAP = re.compile(rf"{KEYS_PREFIX}([0-9a-f]{{{2 * KEY_ID_BYTES}}})/({_MASTER_NAME.pattern})\Z")


@dataclass(frozen=True, slots=True)
class MasterKeys:
    """Named keys of 32 bytes. The first one wraps new data keys. The repr has no key."""

    keys: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME:BASE64,NAME:BASE64`.

        Raises:
            ValueError: the text has another form; the error does not repeat it.
        """
        keys: dict[str, bytes] = {}
        given = [one.strip() for one in text.split(",") if one.strip()]
        for number, one in enumerate(given, 1):
            name, _, encoded = one.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except ValueError:  # also text that is not ASCII
                key = b""
            is_name = _MASTER_NAME.fullmatch(name) and name not in {".", ".."}
            if not is_name or len(key) != _KEY_BYTES or name in keys:
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
        """Name of the master key that wraps new data keys."""
        return next(iter(self.keys))


class DataKey(NamedTuple):
    """Data key with the fields of its wrap."""

    key: bytes
    tier: bytes = b""
    """Tier that the key is bound to; empty for a key of the older form."""
    reads_older: bool = True
    """Whether this storage still reads objects of the older form."""


class OlderForm(Corrupt):
    """Object of the older form in a storage that refuses it."""


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """Result of `rewrap` for one data key."""

    key_id: str
    was_under: tuple[str, ...]
    """Names of the master keys that wrapped it before."""
    under: str
    """Name of the only master key that wraps it now."""


class KeyRing:
    """Data keys of one storage, read on demand. Memory: 100 bytes a key."""

    def __init__(self, store: ObjectStore, masters: MasterKeys, *, held: str) -> None:
        """Read nothing yet. `held` is a prefix below which every non-empty storage has objects."""
        self._store = store
        self._masters = masters
        self._held = held
        self._keys: dict[bytes, DataKey] = {}
        self._failed: dict[bytes, Denied | Corrupt] = {}
        """Errors of data keys that cannot be opened, by id."""
        self._tier = b""
        """Tier of the data keys; empty if no data key is bound yet."""
        self._older: set[bytes] = set()
        """Ids of data keys of the older form that are refused."""
        self._reads_older = True
        self._current: bytes | None = None
        self._ciphers: dict[tuple[bytes, str], ObjectKey] = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<KeyRing: {len(self._keys)} data keys>"

    @property
    def older(self) -> set[bytes]:
        """Ids of the known data keys of the older form, refused ones included."""
        return self._older | {key_id for key_id, key in self._keys.items() if not key.tier}

    @property
    def reads_older(self) -> bool:
        """Whether objects of the older form are read, by the data keys read so far."""
        return self._reads_older

    async def know_place(self) -> None:
        """Read the data keys once.

        Costs a listing and one read for each data key; in an empty storage two listings.

        Raises:
            Denied: the storage is not encrypted, its data keys are missing, or no configured master
                key wraps any of them.
            Corrupt: no data key can be opened.
            Unavailable: the storage did not respond; retry.
        """
        if self._keys:
            return
        async with self._lock:
            if not self._keys:
                await self._load()
            if not self._keys:
                await self._refuse_held()

    async def for_writing(self) -> bytes:
        """Return the id of the data key for new objects.

        The first call costs a listing and a read for each data key, and two creates if there is no
        usable data key.

        Raises:
            Denied, Corrupt, Unavailable: as `know_place`.
        """
        if self._current is not None:
            return self._current
        async with self._lock:
            if self._current is None:
                await self._load()
            if self._current is None:
                self._current = await self._begin()
        return self._current

    def is_bound(self, key_id: bytes) -> bool:
        """Whether a data key is known and of the newer form. Its objects have no other data key."""
        key = self._keys.get(key_id)
        return key is not None and bool(key.tier)

    async def know(self, key_ids: set[bytes], name: str) -> None:
        """Load the data keys of these ids from the storage, unless they are known.

        Raises:
            Denied: no configured master key wraps one of them.
            Corrupt: a data key does not exist or cannot be opened, or is of the older form and that
                is refused (`OlderForm`). `name` is the object.
        """
        if key_ids <= self._keys.keys():
            return
        async with self._lock:
            if not key_ids <= self._keys.keys():
                await self._load()
        for key_id in sorted(key_ids - self._keys.keys()):
            if key_id in self._failed:
                raise self._failed[key_id]
            if key_id in self._older:
                reason = (
                    "the object is in the older form, which this tier has left: an older copy of "
                    "it was restored"
                )
                raise OlderForm(reason, name)
            reason = f"its data key {key_id.hex()} is lost, or the object is not encrypted"
            raise Corrupt(reason, name)

    def cipher(self, key_id: bytes, name: str) -> ObjectKey:
        """Return the cipher of one object under a known data key. Costs 10 us, then cached."""
        found = self._ciphers.get((key_id, name))
        if found is None:
            if len(self._ciphers) >= CIPHERS_MAX:
                self._ciphers.clear()
            found = self._ciphers[key_id, name] = _object_key(self._keys[key_id], name)
        return found

    async def _load(self) -> None:
        """Open all data keys that the master keys can open; keep the errors of the others.

        Lists again if wraps are replaced meanwhile.

        Raises:
            Denied, Corrupt: no data key can be opened.
            Unavailable: wraps were replaced in each attempt.
        """
        for _ in range(LISTINGS_MAX - 1):
            with suppress(_ReplacedError):
                return await self._load_once()
        return await self._load_once()

    async def _load_once(self) -> None:
        opened: dict[bytes, tuple[str, DataKey]] = {}
        self._failed = {}
        for key_id, names in (await wraps_in(self._store)).items():
            number = bytes.fromhex(key_id)
            try:
                opened[number] = await _opened(self._store, key_id, names, self._masters)
            except (Denied, Corrupt) as error:
                self._failed[number] = error
        self._know_tier(opened)
        for number, (_, key) in opened.items():
            if key.tier and key.tier != self._tier:
                reason = "a data key of another tier was put here"
                self._failed[number] = Corrupt(reason, f"{KEYS_PREFIX}{number.hex()}")
            else:
                self._keys[number] = key
                self._reads_older = self._reads_older and key.reads_older
        if not self._reads_older:
            self._older = self.older
            self._keys = {number: key for number, key in self._keys.items() if key.tier}
        if not self._keys and self._failed:
            raise next(iter(self._failed.values()))
        for number, (master, key) in opened.items():
            is_bound = bool(key.tier) and number in self._keys
            if is_bound and master == self._masters.current and self._is_newest_form(key):
                self._current = number

    def _is_newest_form(self, key: DataKey) -> bool:
        return key.reads_older == self._reads_older

    def _know_tier(self, opened: Mapping[bytes, tuple[str, DataKey]]) -> None:
        """Set the tier from its data keys.

        Raises:
            Denied: the data keys are of several tiers, so the right one is unknown.
        """
        of: dict[bytes, list[str]] = {}
        for number, (_, key) in opened.items():
            if key.tier:
                of.setdefault(key.tier, []).append(number.hex())
        if self._tier or not of:
            return
        if len(of) > 1:
            listed = ", or ".join(" and ".join(sorted(numbers)) for numbers in of.values())
            reason = (
                "data keys of several tiers lie here: take away those that were copied from "
                f"another tier ({listed})"
            )
            raise Denied(reason, KEYS_PREFIX)
        (self._tier,) = of

    async def refuse_older(self) -> None:
        """Refuse objects of the older form from now on, in all processes. None may be left.

        Costs at most two listings, two reads and a create.

        Raises:
            Denied, Corrupt, Unavailable: as `know_place`.
        """
        async with self._lock:
            await self._load()
            if self._reads_older:
                self._reads_older = False
                self._current = await self._begin()
                await self._load()

    async def _begin(self) -> bytes:
        """Create a data key. An empty storage refuses the older form from the start."""
        if not self._keys:
            await self._refuse_held()
            self._reads_older = False
        self._tier = self._tier or await _agreed_tier(self._store)
        key_id = os.urandom(KEY_ID_BYTES)
        key = DataKey(os.urandom(_KEY_BYTES), self._tier, self._reads_older)
        current = self._masters.current
        await _wrap(self._store, key_id.hex(), key, current, self._masters.keys[current])
        self._keys[key_id] = key
        return key_id

    async def _refuse_held(self) -> None:
        """Refuse a storage that has objects but no data keys.

        Raises:
            Denied: it is plain storage, or encrypted storage without its keys.
        """
        entries = await self._store.list(self._held)
        sample = entries[-SAMPLE:]
        if not sample:
            return
        sealed = [await _may_be_sealed(self._store, entry) for entry in sample]
        if sum(sealed) * 2 > len(sealed):
            raise Denied(
                "its data keys are gone: restore them from a copy; without them no object can be "
                "read",
                KEYS_PREFIX,
            )
        raise Denied("it is not encrypted: take the keys away", "")


class _ReplacedError(Unavailable):
    """Another process is replacing wraps."""


LISTINGS_MAX: Final = 3
"""Most attempts to list and open the data keys."""
SAMPLE: Final = 5
"""Objects that are examined to distinguish plain storage from encrypted storage without keys."""


async def _may_be_sealed(store: ObjectStore, entry: ObjectEntry) -> bool:
    """Whether an object has the length, padding and single key id of encrypted frames."""
    if content_bytes(entry.size_bytes) is None:
        return False
    frames, tail = divmod(entry.size_bytes, FRAME_BYTES)
    if tail:
        padding = ByteRange(entry.size_bytes - tail, entry.size_bytes)
        if any(bytes(await store.read(entry.name, padding))):
            return False
    if frames == 1:
        return True
    two = await store.read(entry.name, ByteRange(0, 2 * FRAME_BYTES))
    return len(key_ids(two)) == 1


CIPHERS_MAX: Final = 1024
"""Objects whose ciphers are cached."""


async def wraps_in(store: ObjectStore) -> dict[str, list[str]]:
    """List the ids of all data keys, with the master keys that wrap each. One listing."""
    wraps: dict[str, list[str]] = {}
    for entry in await store.list(KEYS_PREFIX):
        if found := _WRAP.match(entry.name):
            wraps.setdefault(found[1], []).append(found[2])
    return wraps


async def rewrap(
    store: ObjectStore, masters: MasterKeys, *, dry_run: bool = False
) -> Sequence[Rewrapped]:
    """Wrap every data key under the first master key, and delete its wraps under all others.

    A wrap is read back and opened before any other valid one is deleted. A crash at any point
    therefore leaves each data key with a wrap; call again. Costs four requests for each data key.
    Processes with only the old master key cannot start any more; running ones continue.

    Raises:
        Denied: no configured master key wraps some data key; nothing is changed.
        Corrupt: a wrap cannot be opened; nothing more is changed.
    """
    wraps = await wraps_in(store)
    for key_id, names in wraps.items():
        if not masters.keys.keys() & set(names):
            raise Denied(
                f"data key {key_id} is wrapped by {' and '.join(sorted(names))}, which was not "
                "given",
                f"{KEYS_PREFIX}{key_id}",
            )
    keys = {name: await _opened(store, name, under, masters) for name, under in wraps.items()}
    done: list[Rewrapped] = []
    current = masters.current
    for key_id, (master, key) in keys.items():
        names = wraps[key_id]
        done.append(Rewrapped(key_id, tuple(sorted(names)), current))
        if dry_run:
            continue
        if master != current:
            if current in names:  # this wrap cannot be opened, another one can
                await store.delete([_wrap_name(key_id, current)])
            await _wrap(store, key_id, key, current, masters.keys[current])
        others = [name for name in names if name != current]
        if others:
            await store.delete([_wrap_name(key_id, name) for name in others])
    return done


async def forget_wraps(store: ObjectStore, key_ids: set[bytes]) -> None:
    """Delete all wraps of these data keys. Objects under them become unreadable."""
    wraps = await wraps_in(store)
    gone = wraps.keys() & {key_id.hex() for key_id in key_ids}
    names = [_wrap_name(key_id, master) for key_id in gone for master in wraps[key_id]]
    if names:
        await store.delete(names)


async def _opened(
    store: ObjectStore, key_id: str, names: Sequence[str], masters: MasterKeys
) -> tuple[str, DataKey]:
    """Open a data key. Return the first master key that opens it, and the data key.

    Costs one read, or at most one for each configured master key.

    Raises:
        Denied: none of these master keys is configured, or each wrap is in a newer format.
        Corrupt: no wrap can be opened.
        Unavailable: the wraps were replaced meanwhile; retry.
    """
    known = [name for name in masters.keys if name in names]
    if not known:
        raise Denied(
            f"it is encrypted under the master key {' or '.join(sorted(names))}, which was not "
            "given",
            f"{KEYS_PREFIX}{key_id}",
        )
    failed: Denied | Corrupt | Unavailable | None = None
    for name in known:
        try:
            return name, await _unwrapped(store, key_id, name, masters.keys[name])
        except NotFound:  # must not be reported as if the object itself were missing
            reason = "data keys are being wrapped by another master key; try again"
            failed = failed or _ReplacedError(reason, f"{KEYS_PREFIX}{key_id}")
        except (Denied, Corrupt) as error:
            failed = failed or error
    assert failed is not None, "each master key opens the data key or fails"
    raise failed


def _wrap_name(key_id: str, master: str) -> str:
    return f"{KEYS_PREFIX}{key_id}/{master}"


async def _tier_of(store: ObjectStore) -> bytes:
    """Read the tier of the storage from `@keys/tier`.

    Raises:
        NotFound: the object is missing.
        Corrupt: the object is damaged.
        Denied: the object has a newer format.
    """
    text = bytes(await store.read(TIER_NAME))
    try:
        fields = cast("dict[str, Any]", json.loads(text))
        if fields["format"] != 1:
            reason = f"format {fields['format']} of {TIER_NAME} is newer than this program"
            raise Denied(reason, TIER_NAME)
        return _as_tier(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("the name of the tier is damaged", TIER_NAME) from error


async def _agreed_tier(store: ObjectStore) -> bytes:
    """Return the tier of a storage without bound data keys. The first writer decides it."""
    mine = os.urandom(_TIER_BYTES)
    try:
        await store.create(TIER_NAME, [json.dumps({"format": 1, "tier": mine.hex()}).encode()])
    except AlreadyExists:
        return await _tier_of(store)
    return mine


def _as_tier(fields: Mapping[str, Any]) -> bytes:
    tier = bytes.fromhex(fields["tier"])
    if len(tier) != _TIER_BYTES:
        raise ValueError("a tier's name has 16 bytes")
    return tier


def _wrap_associated(key_id: str, key: DataKey) -> bytes:
    """Return the associated data of a wrap. Pure."""
    if not key.tier:
        return key_id.encode()
    return b"".join(
        (b"tieredstore data key 2\0", bytes.fromhex(key_id), key.tier, bytes([key.reads_older]))
    )


async def _wrap(
    store: ObjectStore, key_id: str, key: DataKey, master: str, wrapping: bytes
) -> None:
    """Store a data key under a master key, and verify that it can be opened."""
    nonce = os.urandom(NONCE_BYTES)
    sealed = _aes_gcm(wrapping).encrypt(nonce, key.key, _wrap_associated(key_id, key))
    bound = {"tier": key.tier.hex(), "reads_older": key.reads_older} if key.tier else {}
    fields = {
        "format": FORMAT if key.tier else OLDER_FORMAT,
        **bound,
        "nonce": base64.b64encode(nonce).decode(),
        "wrapped": base64.b64encode(sealed).decode(),
    }
    with suppress(AlreadyExists):  # the wrap of an earlier attempt is opened below
        await store.create(_wrap_name(key_id, master), [json.dumps(fields).encode()])
    if await _unwrapped(store, key_id, master, wrapping) != key:
        raise Corrupt("the storage has another data key of this id", _wrap_name(key_id, master))


async def _unwrapped(store: ObjectStore, key_id: str, master: str, wrapping: bytes) -> DataKey:
    """Read and open one wrap of a data key.

    Raises:
        NotFound: the wrap does not exist.
        Corrupt: the wrap is damaged, or was not made with that master key.
        Denied: the wrap has a newer format.
    """
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra has it

    name = _wrap_name(key_id, master)
    text = bytes(await store.read(name))
    try:
        fields = cast("dict[str, Any]", json.loads(text))
        if fields["format"] not in {OLDER_FORMAT, FORMAT}:
            raise Denied(f"format {fields['format']} of data keys is newer than this program", name)
        key = DataKey(b"")
        if fields["format"] == FORMAT:
            key = DataKey(b"", _as_tier(fields), fields["reads_older"] is not False)
        nonce, sealed = (base64.b64decode(fields[part]) for part in ("nonce", "wrapped"))
        opened = _aes_gcm(wrapping).decrypt(nonce, sealed, _wrap_associated(key_id, key))
        return key._replace(key=opened)
    except (ValueError, KeyError, TypeError, InvalidTag) as error:
        reason = f"a data key cannot be opened with the master key {master}: another key, or damage"
        raise Corrupt(reason, name) from error


def _aes_gcm(key: bytes) -> Cipher:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM(key)


def _object_key(key: DataKey, name: str) -> ObjectKey:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - as above

    of = b"tieredstore bound object\0" + key.tier if key.tier else b"tieredstore object "
    derived = HKDF(SHA256(), _KEY_BYTES, salt=None, info=of + name.encode())
    return ObjectKey(_aes_gcm(derived.derive(key.key)), is_bound=bool(key.tier))
