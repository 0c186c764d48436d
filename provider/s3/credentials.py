"""Credentials as boto3 finds them, kept fresh while a process runs."""

# botocore has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final

REFRESH_S: Final = 300.0
"""Age at which credentials are asked for again, in seconds. boto3 renews those that expire a
quarter of an hour before they do; those of a file are read again."""
_ID, _SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"

Credential = Mapping[str, Any]
"""What obstore asks a provider for: key, secret, token and the time to ask again."""


class NoCredentials(PermissionError):
    """No credentials were found, or what names them is wrong. Its text says what to set."""


class EnvironmentCredentials:
    """The key pair of `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. Its text has neither."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        token = environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_SECURITY_TOKEN")
        self._found = {
            "access_key_id": environment[_ID].strip(),
            "secret_access_key": environment[_SECRET].strip(),
            "token": token or None,
            "expires_at": None,
        }

    def __repr__(self) -> str:
        return "<EnvironmentCredentials>"

    def __call__(self) -> Credential:
        """The pair; it never expires."""
        return self._found


class ChainCredentials:
    """Credentials of boto3's chain.

    Those are profiles, SSO, assumed roles, `credential_process`, containers, web identity, and the
    machine's role, which is waited for a second or two.

    Safe to call from any thread. boto3 is imported at the first call.
    """

    def __init__(self) -> None:
        """Nothing is read."""
        self._lock = Lock()
        self._session: Any = None
        self._credentials: Any = None
        self.failure: NoCredentials | None = None
        """Why the last call found none; None after one that did."""

    def __repr__(self) -> str:
        return "<ChainCredentials>"

    def __call__(self) -> Credential:
        """Credentials that are valid now. Blocks: files, programs, HTTP.

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
        """Where the last credentials came from, as boto3 names it."""
        return str(getattr(self._credentials, "method", "") or "boto3's chain")

    def region(self) -> str:
        """The region of the profile; "" if it has none, or is not there. Blocks."""
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - a tenth of a second

        with self._lock:
            try:
                return str(self._opened().get_config_variable("region") or "")
            except BotoCoreError:
                return ""  # the first request says what is wrong

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
                "others: `pip install tieredstore[s3]`"
            ) from error
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above

        try:
            if not isinstance(self._credentials, RefreshableCredentials):
                self._session = None  # a file may have other keys by now
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
    """The provider for this process. Nothing is read but the environment, nothing imported."""
    if environment.get(_ID) and environment.get(_SECRET):
        return EnvironmentCredentials(environment)
    return ChainCredentials()
