"""Where requests may go, and what is refused before one is signed."""

import pytest

from provider.names import is_loopback
from provider.s3.file_system import S3FileSystem
from provider.s3.options import S3Options, endpoint_of


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        ("http://s3.example.com", "without TLS: use https://"),
        ("ftp://s3.example.com", "is https://host"),
        ("s3.example.com", "check objectStoreEndpoint or AWS_ENDPOINT_URL"),
        ("https://key:secret@s3.example.com", "holds credentials"),
        ("https://s3.example.com?x=1", "more than a host"),
    ],
)
def test_a_wrong_endpoint_is_one_sentence(endpoint: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        S3Options(endpoint=endpoint)
    assert "secret@" not in str(refused.value)
    with pytest.raises(ValueError, match=sentence):
        endpoint_of(S3Options(), {"AWS_ENDPOINT_URL": endpoint})


@pytest.mark.parametrize(
    ("host", "is_this_machine"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_only_this_machine_needs_no_tls(host: str, is_this_machine: bool) -> None:  # noqa: FBT001
    assert is_loopback(host) is is_this_machine


def test_http_to_another_machine_is_allowed_on_purpose() -> None:
    assert S3Options(endpoint="http://s3.example.com", allow_http=True).allow_http
    assert endpoint_of(S3Options(endpoint="https://a.example"), {"AWS_ENDPOINT_URL": "x"}) == (
        "https://a.example"
    )
    assert endpoint_of(S3Options(), {"AWS_ENDPOINT_URL_S3": "https://b.example"}) == (
        "https://b.example"
    )


@pytest.mark.parametrize("proxy", ["socks5://10.0.0.1:1080", "https://us:secret@10.0.0.1:3128"])
def test_a_proxy_that_listings_cannot_pass_is_one_sentence(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = rf"not {proxy.partition('@')[0].partition(':')[0]}://; check objectStoreProxy"
    with pytest.raises(ValueError, match=sentence) as refused:
        S3FileSystem(endpoint="https://s3.example.com", proxy=proxy)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ValueError, match=sentence):
        S3FileSystem(endpoint="https://s3.example.com")
    S3FileSystem(endpoint="https://127.0.0.1:8333")
    monkeypatch.setenv("NO_PROXY", "example.com")
    S3FileSystem(endpoint="https://s3.example.com")


def test_encryption_that_s3_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no such server-side encryption: 'rot13'"):
        S3Options(server_side_encryption="rot13")
    with pytest.raises(ValueError, match="a KMS key needs"):
        S3Options(kms_key_id="key")
    with pytest.raises(ValueError, match="connections and time"):
        S3FileSystem(connections_max=0)
