"""AWS Signature Version 4 of a request without a body. Pure."""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlsplit

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_EMPTY: Final = hashlib.sha256(b"").hexdigest()


def query_text(parameters: Mapping[str, str]) -> str:
    """A query as it is sent and signed: by name, each byte escaped but unreserved ones."""
    pairs = sorted(
        (quote(name, safe=""), quote(value, safe="")) for name, value in parameters.items()
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(
    url: str,
    query: str,
    *,
    region: str,
    key: str,
    secret: str,
    token: str = "",
    more: Mapping[str, str] | None = None,
    now: datetime,
) -> dict[str, str]:
    """The headers of `GET url?query`, signed for S3 with all of `more`. `now` is in UTC."""
    parts = urlsplit(url)
    time, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {
        "host": parts.netloc,
        "x-amz-content-sha256": _EMPTY,
        "x-amz-date": time,
        **({"x-amz-security-token": token} if token else {}),
        **(more or {}),
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"GET\n{parts.path or '/'}\n{query}\n{lines}\n{names}\n{_EMPTY}"
    scope = f"{day}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    signing = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    signature = hmac.digest(signing, f"{_ALGORITHM}\n{time}\n{scope}\n{digest}".encode(), "sha256")
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={key}/{scope}, SignedHeaders={names}, Signature={signature.hex()}"
    )
    return headers
