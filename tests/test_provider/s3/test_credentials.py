"""Where credentials come from, that they are renewed, and that ours are signed with as AWS's."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from provider.s3.client import query_text, signed_headers
from provider.s3.errors import (
    ChainCredentials,
    EnvironmentCredentials,
    NoCredentials,
    credentials_of,
)
from provider.s3.file_system import S3FileSystem

EXPIRES = "2099-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()


@pytest.fixture
def container() -> Iterator[str]:
    """Credentials as a container's agent serves them."""

    class Agent(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's
            """Nothing."""

        def do_GET(self) -> None:
            found = {"AccessKeyId": "of-container", "SecretAccessKey": "s", "Token": "t"}
            body = json.dumps({**found, "Expiration": EXPIRES}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Agent)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/credentials"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_pair_of_the_environment_is_used_as_it_is() -> None:
    given = {"AWS_ACCESS_KEY_ID": " k ", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    found = credentials_of(given)
    assert isinstance(found, EnvironmentCredentials)
    assert (found()["access_key_id"], found()["token"]) == ("k", "t")
    assert "k" not in repr(found).replace("EnvironmentCredentials", "")


@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key", "token"])
@pytest.mark.parametrize("wrong", ["two\nlines", "schlüssel", "nul\0"])
async def test_a_credential_that_no_header_can_hold_is_a_refusal(name: str, wrong: str) -> None:
    given = {"access_key_id": "k", "secret_access_key": "s", "token": "t", "expires_at": None}
    credentials = partial(dict[str, Any], given | {name: wrong})
    system = S3FileSystem(
        asynchronous=True,
        skip_instance_cache=True,
        endpoint="http://127.0.0.1:9",
        credentials=credentials,
    )
    for work in (
        system._pipe_file("bucket/name", b"content"),
        system._cat_file("bucket/name"),
        system._ls("bucket/"),
    ):
        with pytest.raises(PermissionError, match="line break") as caught:
            await work
        assert wrong not in str(caught.value)
    await system.close()


def test_keys_of_a_file_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / ".aws" / "credentials"
    chain = ChainCredentials()
    for key in ("first", "second"):
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")
        assert chain()["access_key_id"] == key
        assert chain()["expires_at"] > datetime.now(UTC)
    path.unlink()
    with pytest.raises(NoCredentials, match="AWS_ACCESS_KEY_ID"):
        chain()
    assert chain.failure is not None


def test_a_program_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"Version": 1, "AccessKeyId": "of-program", "SecretAccessKey": "s"}
    script = tmp_path / "program.py"
    script.write_text(f"print({json.dumps({**found, 'Expiration': EXPIRES})!r})")
    (tmp_path / ".aws" / "config").write_text(
        f"[profile p]\nregion = eu-west-3\ncredential_process = {sys.executable} {script}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "p")
    chain = ChainCredentials()
    assert chain()["access_key_id"] == "of-program"
    assert chain.region() == "eu-west-3"


def test_a_container_needs_no_token_file(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", container)
    found = ChainCredentials()()
    assert (found["access_key_id"], found["token"]) == ("of-container", "t")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "no credentials were found"),
        ({"AWS_PROFILE": "absent"}, "absent"),
        ({"AWS_ACCESS_KEY_ID": "half"}, "AWS_SECRET_ACCESS_KEY"),
        (
            {
                "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token",
                "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/r",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
            "/nowhere/token",
        ),
    ],
    ids=["none", "profile", "half", "token file"],
)
def test_what_lacks_is_named(
    environment: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoCredentials, match=sentence):
        ChainCredentials()()


@pytest.mark.parametrize("token", ["", "a/token=="])
@pytest.mark.parametrize("path", ["/bucket", "", "/s3/v1/bucket"])
def test_a_request_is_signed_as_boto3_signs_it(path: str, token: str) -> None:
    """An independent implementation of the same text."""
    from botocore.auth import S3SigV4Auth  # noqa: PLC0415 - an extra has it
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - an extra has it
    from botocore.credentials import Credentials  # noqa: PLC0415 - an extra has it

    url = f"https://s3.example.test:8443{path}"
    whole = url if path else f"{url}/"  # as boto3 always sends it
    query = query_text(
        {"list-type": "2", "prefix": "a b+c/é~*'()", "delimiter": "/", "start-after": ""}
    )
    request = AWSRequest("GET", f"{whole}?{query}")
    signer = S3SigV4Auth(Credentials("k", "s", token or None), "s3", "eu-west-3")
    signer.add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    now = datetime.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = signed_headers(url, query, region="eu-west-3", key="k", secret="s", token=token, now=now)
    assert theirs["authorization"] == ours["authorization"]
