"""Security of connections: accounts whose secrets sign requests, and TLS."""

import base64
import binascii
import hmac
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tieredstore.config.sources import ConfigError
from tieredstore.serve.wire.frame import Command, ResponseCode
from tieredstore.serve.wire.request import Refused

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
UNSIGNED_BEFORE_494 = "_UNIQUE_KEY_QUERY"
"""Field that clients up to 4.9.3 add after they have signed."""
COMMENT = "#"


class Accounts:
    """Secrets by access key."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {key: secret.encode() for key, secret in secrets.items()}

    def __repr__(self) -> str:
        return f"<Accounts: {len(self._secrets)}>"

    @classmethod
    def read(cls, path: Path) -> "Accounts":
        """Read a file with an access key and a secret in each line. Blocks.

        Raises:
            ConfigError: it cannot be read, has another line, or names a key twice or none.
        """
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(f"the accounts {path} cannot be read: {reason.lower()}") from error
        secrets: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith(COMMENT):
                continue
            if len(words) != 2 or words[0] in secrets:  # noqa: PLR2004 - key and secret
                raise ConfigError(
                    f"{path}, line {number}: a line has an access key and its secret, and each key "
                    f"is named once"
                )
            secrets[words[0]] = words[1]
        if not secrets:
            raise ConfigError(f"the accounts {path} name no access key")
        return cls(secrets)

    def verify(self, command: Command) -> None:
        """Verify the signature of a request. About 5 us.

        Raises:
            Refused: it is signed by no account.
        """
        fields = command.fields
        secret = self._secrets.get(fields.get(ACCESS_KEY, ""))
        if secret is not None:
            given = _decoded(fields.get(SIGNATURE, ""))
            for left_out in ((SIGNATURE,), (SIGNATURE, UNSIGNED_BEFORE_494)):
                if hmac.compare_digest(given, signature(secret, command, left_out)):
                    return
        raise Refused(
            ResponseCode.NO_PERMISSION, "the request is not signed by an account of this server"
        )


def signature(secret: bytes, command: Command, left_out: Iterable[str] = (SIGNATURE,)) -> bytes:
    """Sign the values of all other fields in the order of their names, and the body. Pure."""
    values = (value for name, value in sorted(command.fields.items()) if name not in left_out)
    return hmac.digest(secret, "".join(values).encode() + command.body, "sha1")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a TLS server, in PEM."""

    certificates: Path
    """The server's certificate and those between it and its authority."""
    key: Path
    client_authorities: Path | None
    """Authorities of the certificates that clients must have; None: they need none."""

    def context(self) -> ssl.SSLContext:
        """Load the files. Blocks.

        Raises:
            ConfigError: a file cannot be read or does not fit.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password, an encrypted key would be asked for at the terminal.
            context.load_cert_chain(self.certificates, self.key, password=lambda: "")
            if self.client_authorities is not None:
                context.load_verify_locations(self.client_authorities)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # ssl.SSLError is one
            names = [self.certificates, self.key, self.client_authorities]
            files = ", ".join(str(one) for one in names if one is not None)
            reason = error.strerror or str(error)
            raise ConfigError(f"clients cannot be served by TLS with {files}: {reason}") from error
        return context
