"""Makes `bound_vectors.json` by FORMAT.md, with the package `cryptography` and nothing of ours.

`python make_bound_vectors.py > bound_vectors.json`. The content is the bytes 0 to 250 in turn.
"""

import base64
import json
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MASTER, DATA_KEY = bytes(range(32)), bytes(range(100, 132))
KEY_ID, TIER = bytes.fromhex("0badf00d"), bytes(range(200, 216))
OBJECTS = {"entries/7": 100, "parts/two frames": 4061, "parts/full": 4060}


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def frame(cipher: AESGCM, upload: bytes, number: int, content: bytes, *, is_last: bool) -> bytes:
    head = (is_last << 31 | len(content)).to_bytes(4, "big")
    nonce = upload + number.to_bytes(4, "big")
    plain = head + content.ljust(4060, b"\0")
    return KEY_ID + nonce + cipher.encrypt(nonce, plain, number.to_bytes(8, "big"))


def sealed(name: str, content: bytes) -> bytes:
    info = b"tieredstore bound object\0" + TIER + name.encode()
    cipher = AESGCM(HKDF(SHA256(), 32, None, info).derive(DATA_KEY))
    full, upload = len(content) // 4060, name.encode()[-8:].rjust(8, b"\0")
    pieces = [content[at * 4060 :][:4060] for at in range(full + 1)]
    frames = [frame(cipher, upload, n, p, is_last=n == full) for n, p in enumerate(pieces)]
    return b"".join(frames) + bytes(len(pieces[-1]))


def vectors() -> dict[str, Any]:
    bound = b"tieredstore data key 2\0" + KEY_ID + TIER + b"\0"
    wrapped = AESGCM(MASTER).encrypt(bytes(12), DATA_KEY, bound)
    wrap = {"format": 2, "tier": TIER.hex(), "reads_older": False}
    content = bytes(range(251)) * 40
    return {
        "master": f"m:{text(MASTER)}",
        "wrap_name": f"@keys/{KEY_ID.hex()}/m",
        "wrap": {**wrap, "nonce": text(bytes(12)), "wrapped": text(wrapped)},
        "objects": {
            name: {"content_bytes": size, "object": text(sealed(name, content[:size]))}
            for name, size in OBJECTS.items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))
