"""Commands over an S3 that differs from AWS: exit status, sentence, and nothing lost."""

import copy
import json
import signal
import socket
import subprocess
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.certificates import made_certificates
from tests.support.cli import COMMAND, complaints
from tests.support.fake_broker import FakeBroker
from tests.support.odd_s3 import OddS3, Refusal
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.follower import Follower


class ConnectProxy(ThreadingTCPServer):
    """`asked` has what clients wanted to reach, such as `s3.example.test:443`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.port, self.asked = port, list[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Tunnel(StreamRequestHandler):
    server: ConnectProxy  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split(" ", 2)
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(target)
        if method != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", self.server.port)) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = Thread(target=_pour, args=(there, self.connection), daemon=True)
            back.start()
            _pour(self.connection, there)
            back.join()


def _pour(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def connect_proxy(port: int) -> Iterator[ConnectProxy]:
    """A proxy that tunnels to `port` of loopback while the block runs."""
    with ConnectProxy(port) as proxy:
        thread = Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")
TIER = ("--tier", "s3://odd/t")
PASSING = [
    (403, "RequestTimeTooSkewed", "clock"),
    (400, "ExpiredToken", "token"),
    (403, "AccessDenied", "s3:"),
    (403, "InvalidAccessKeyId", "access key"),
]


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def sentence(result: Result, status: int) -> str:
    assert result.exit_code == status, result.output
    lines = complaints(result.stderr).splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    broker = FakeBroker(tmp_path / "store")
    for number in range(10):
        broker.put("Orders", 0, b"%d" % number)
    broker.put("Others", 0, b"x")
    return broker.directory


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3_retries_at_once: None) -> Any:
    """Serve with oddities, and let commands of this process find the server."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    @contextmanager
    def serving(**oddities: Any) -> Iterator[OddS3]:
        with OddS3(**oddities) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            yield server

    return serving


def assert_whole(*more: str) -> None:
    read = invoke(*TIER, *more, "read", "Orders", "0", "--json")
    assert [json.loads(line)["body"] for line in read.stdout.splitlines()] == list("0123456789")
    assert invoke(*TIER, *more, "check", "--json").stdout == ""


@pytest.mark.parametrize(("status", "code", "cure"), PASSING)
def test_a_refusal_ends_a_command_that_runs_once_with_2(
    reach: Any, store: Path, status: int, code: str, cure: str
) -> None:
    with reach(refusals=[Refusal(status=status, code=code)]):
        for words in (["topics"], [*NAMED, "tier", store], ["check"]):
            said = sentence(invoke(*TIER, *words), 2)
            assert cure in said
            assert "bucket 'odd' at http://127.0.0.1" in said


@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        ("AWS_ACCESS_KEY_ID", "AKIA\nEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "pass\x7fword"),
        ("AWS_SESSION_TOKEN", "geheimnisträger"),
        ("AWS_REGION", "eu\nwest"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9\n1"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9/ü"),
        ("HTTP_PROXY", "http://user:pass\nword@127.0.0.1:9"),
        ("TIEREDSTORE_OBJECT_STORE_KMS_KEY_ID", "arn:\naws"),
    ],
)
def test_what_no_request_can_hold_is_one_sentence_without_it(
    reach: Any, store: Path, monkeypatch: pytest.MonkeyPatch, variable: str, wrong: str
) -> None:
    with reach():
        monkeypatch.setenv(variable, wrong)
        said = sentence(invoke(*TIER, *NAMED, "tier", store), 2)
    assert variable.removeprefix("TIEREDSTORE_OBJECT_STORE_").split("_")[0] in said
    assert not any(part in said for part in ("EXAMPLE", "word", "träger"))


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(status=503, code="SlowDown"),
        Refusal(status=500, code="InternalError"),
        Refusal(status=507),
    ],
    ids=lambda one: str(one.status),
)
def test_what_a_later_try_may_cure_is_3(reach: Any, store: Path, refusal: Refusal) -> None:
    with reach(refusals=[refusal]):
        said = sentence(invoke(*TIER, *NAMED, "tier", store), 3)
    assert str(refusal.status) in said


@pytest.mark.parametrize(("status", "code", "cure"), PASSING)
def test_a_follower_waits_a_refusal_out_and_ends_with_3(
    reach: Any, store: Path, status: int, code: str, cure: str
) -> None:
    with reach(refusals=[Refusal(status=status, code=code)]) as server:
        given = [*TIER, *NAMED, "-D", "tieredStoreStartTimeout=700"]
        ended = invoke(*given, "tier", "--follow", store)
        assert ended.exit_code == 3, ended.output
        assert "not ready" in ended.stderr
        assert "tieredStoreStartTimeout" in ended.stderr.splitlines()[-1]
        assert cure in ended.stderr.splitlines()[-1]
        server.odd.refusals.clear()
        assert invoke(*TIER, *NAMED, "tier", store).exit_code == 0
        assert_whole()


@pytest.mark.parametrize(("status", "code", "cure"), PASSING)
async def test_a_follower_goes_on_once_a_refusal_has_passed(
    reach: Any, store: Path, status: int, code: str, cure: str
) -> None:
    with reach(refusals=[Refusal(status=status, code=code, times=1)]) as server:
        given = {"tieredStoreFilePath": "s3://odd/t", "brokerClusterName": "C"}
        load = partial(Config.load, settings={**given, "brokerName": "broker-a"})
        async with Follower(lambda: load().serving(), store) as follower:
            done = await follower.drain()
        assert done.messages == 11
        assert server.odd.refusals[0].times == 0
    assert cure


def test_a_refusal_that_no_waiting_changes_ends_a_follower_at_once(reach: Any, store: Path) -> None:
    with reach(region="eu-west-3"):
        said = sentence(invoke(*TIER, *NAMED, "tier", "--follow", store), 2)
    assert "AWS_REGION" in said


def test_a_store_whose_condition_races_is_refused(reach: Any, store: Path) -> None:
    with reach(race_s=0.03) as server:
        said = sentence(invoke(*TIER, *NAMED, "tier", store), 2)
        assert "checks the condition before it stores" in said
        assert server.names() == []


def test_a_store_that_keeps_what_is_deleted_grows_by_one_object(reach: Any, store: Path) -> None:
    with reach(undeletable=".") as server:
        for _ in range(3):
            assert "s3:DeleteObject" in sentence(invoke(*TIER, *NAMED, "tier", store), 2)
        assert len(server.names()) == 1


def test_a_store_without_bulk_deletion_holds_a_tier(reach: Any, store: Path) -> None:
    with reach(bulk_delete=False):
        assert invoke(*TIER, *NAMED, "tier", store).exit_code == 0
        assert_whole()


def test_foreign_keys_stop_no_command(reach: Any, store: Path) -> None:
    with reach() as server:
        assert invoke(*TIER, *NAMED, "tier", store).exit_code == 0
        root = next(iter(server.names())).partition("/@")[0]
        for stray in ("x//y", "", "./y", "../z", "\x01q", "@parts//a", "@journal/./1", "@journal/"):
            server.objects["odd"][f"{root}/{stray}"] = b"strange"
        for words in (["tier", store], ["check"], ["scrub"], ["topics"]):
            done = invoke(*TIER, *NAMED, *words)
            assert done.exit_code == 0, done.output
        assert "passed over" in invoke(*TIER, *NAMED, "check").stderr
        assert_whole()


@pytest.mark.parametrize("tokens", ["missing", "repeated", "circle"])
def test_listings_without_an_end_are_refused(reach: Any, store: Path, tokens: str) -> None:
    with reach() as server:
        assert invoke(*TIER, *NAMED, "tier", store).exit_code == 0
        server.odd.page_max, server.odd.tokens = 1, tokens
        assert "listing" in sentence(invoke(*TIER, *NAMED, "check"), 2)
        server.odd.page_max = 1000
        assert_whole()


@pytest.mark.parametrize("url", ["s3a://odd/t", "S3A://odd/t", "s3n://odd/t"])
def test_hadoops_schemes_name_the_same_place(reach: Any, store: Path, url: str) -> None:
    with reach():
        assert invoke("--tier", url, *NAMED, "tier", store).exit_code == 0
        assert_whole()


@pytest.mark.parametrize("url", ["s3://odd/../x", "s3://odd/./x", "s3://../x", "s3://odd/a\nb"])
def test_a_place_that_is_none_is_wrong_use(reach: Any, store: Path, url: str) -> None:
    with reach():
        for words in (["topics"], [*NAMED, "tier", store]):
            assert "is no place in an object store" in sentence(invoke("--tier", url, *words), 2)


def test_settings_reach_every_kind_of_service(reach: Any, store: Path) -> None:
    """Virtual hosts behind a proxy, a path, requester pays and no checksum, all at once."""
    odd = {
        "virtual_host": "s3.example.test",
        "requester_pays": True,
        "checksum_status": 400,
    }
    with reach(**odd) as server:
        given = [
            "objectStoreEndpoint=http://s3.example.test",
            "objectStoreAllowHttp=true",
            f"objectStoreProxy={server.endpoint}",
            "objectStoreAddressing=VIRTUAL",
            "objectStoreRequesterPays=true",
            "objectStoreUploadChecksum=NONE",
        ]
        defines = [word for one in given for word in ("-D", one)]
        done = invoke(*TIER, *NAMED, *defines, "tier", store)
        assert done.exit_code == 0, done.output
        assert_whole(*defines)


@pytest.mark.slow
def test_a_profile_is_read_where_the_environment_has_no_key(
    reach: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / ".aws"
    home.mkdir(parents=True)
    (home / "credentials").write_text(
        "[prod]\naws_access_key_id = of-prod\naws_secret_access_key = s\n"
    )
    (home / "config").write_text("[profile prod]\nregion = eu-west-3\n")
    with reach(keys=("of-prod",), region="eu-west-3") as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("AWS_PROFILE", "prod")
        done = invoke(*TIER, *NAMED, "tier", store)
        assert done.exit_code == 0, done.output
        assert {one.access_key for one in server.seen} == {"of-prod"}
        monkeypatch.setenv("AWS_PROFILE", "none")
        said = sentence(invoke(*TIER, *NAMED, "tier", store), 2)
        assert "none" in said
        assert "AWS_PROFILE" in said
        monkeypatch.delenv("AWS_PROFILE")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        before = len(server.seen)
        said = sentence(invoke(*TIER, *NAMED, "tier", store), 2)
        assert "no credentials were found" in said
        assert "AWS_ACCESS_KEY_ID" in said
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half")
        said = sentence(invoke(*TIER, *NAMED, "tier", store), 2)
        assert "AWS_SECRET_ACCESS_KEY" in said
        assert len(server.seen) == before, "nothing was sent"


@pytest.mark.process
@pytest.mark.slow
def test_certificates_of_an_authority_of_ones_own(
    reach: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, certificate = made_certificates(tmp_path)
    with reach(certificate=certificate):
        for words in (["topics"], [*NAMED, "tier", store]):
            said = sentence(invoke(*TIER, *words), 2)
            assert "certificate is not trusted" in said
            assert "AWS_CA_BUNDLE" in said
        setting = ("-D", f"objectStoreCaBundle={authority}")
        assert invoke(*TIER, *NAMED, *setting, "tier", store).exit_code == 0
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
        assert_whole()
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "gone.pem"))
        said = sentence(invoke(*TIER, "topics"), 2)
        assert "gone.pem" in said
        assert "AWS_CA_BUNDLE" in said


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "objectStoreProxy"])
def test_a_proxy_tunnels_tls_to_the_service(
    reach: Any, store: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, certificate = made_certificates(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    for one in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(one, raising=False)
    with reach(certificate=certificate) as server, connect_proxy(server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.example.test")
        setting = ("-D", f"{name}={proxy.url}") if name == "objectStoreProxy" else ()
        if not setting:
            monkeypatch.setenv(name, proxy.url)
        done = invoke(*TIER, *NAMED, *setting, "tier", store)
        assert done.exit_code == 0, done.output
        assert_whole(*setting)
        assert set(proxy.asked) == {"s3.example.test:443"}
        assert {one.host for one in server.seen} == {"s3.example.test"}
        asked = len(proxy.asked)
        if not setting:  # the setting says that this service is reached so
            monkeypatch.setenv("NO_PROXY", "s3.example.test")
            said = sentence(invoke(*TIER, "topics"), 3)
            assert "the host is unknown" in said
            assert len(proxy.asked) == asked
    said = sentence(invoke(*TIER, *setting, "topics"), 3)
    assert setting == () or f"through the proxy {proxy.url}" in said


@pytest.mark.process
@pytest.mark.slow
def test_boto3_is_not_imported_where_the_environment_has_a_key(reach: Any, store: Path) -> None:
    with reach() as server:
        script = (
            "import sys; from tieredstore.cli.main import cli\n"
            "try: cli(sys.argv[1:])\n"
            "finally: print(sorted(n for n in sys.modules if n.startswith(('boto', 'urllib3'))))"
        )
        words = [COMMAND[0], "-c", script, *TIER, *NAMED, "tier", str(store)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
        assert server.counts["PUT"] > 0


def _refused(status: int, code: str = "", **more: Any) -> dict[str, Any]:
    return {"refusals": [Refusal(status=status, code=code, **more)]}


WORKS = (0, "")
OBJECTS = r"^/odd/t/[^?]*$"
ODDITIES: dict[str, tuple[dict[str, Any], tuple[tuple[int, str], ...]]] = {
    "access": (_refused(403, "AccessDenied"), ((2, "s3:ListBucket"),) * 4),
    "access to writes": (
        _refused(403, "AccessDenied", methods="PUT"),
        ((2, "s3:PutObject"), WORKS, (2, "s3:PutObject"), WORKS),
    ),
    "access to objects": (
        _refused(403, "AccessDenied", methods="GET", path=OBJECTS),
        ((2, "s3:GetObject"),) * 4,
    ),
    "access to listings": (
        _refused(403, "AccessDenied", path="list-type"),
        ((2, "s3:ListBucket"),) * 4,
    ),
    "access to deletions": (
        _refused(403, "AccessDenied", methods="POST DELETE"),
        ((2, "s3:DeleteObject"), WORKS, (2, "s3:DeleteObject"), WORKS),
    ),
    "locked objects": (
        {"undeletable": "."},
        ((2, "s3:DeleteObject"), WORKS, (2, "s3:DeleteObject"), WORKS),
    ),
    "nobody": (_refused(401), ((2, "s3:ListBucket"),) * 4),
    "key": ({"keys": ("another",)}, ((2, "access key"),) * 4),
    "secret": (_refused(403, "SignatureDoesNotMatch"), ((2, "AWS_SECRET_ACCESS_KEY"),) * 4),
    "clock": (_refused(403, "RequestTimeTooSkewed"), ((2, "NTP"),) * 4),
    "token": (_refused(400, "ExpiredToken"), ((2, "token"),) * 4),
    "payer": ({"requester_pays": True}, ((2, "objectStoreRequesterPays=true"),) * 4),
    "bucket": (_refused(404, "NoSuchBucket"), ((2, "there is no bucket 'odd'"),) * 4),
    "region": ({"region": "eu-west-3"}, ((2, "AWS_REGION"),) * 4),
    "redirection": ({"region": "eu-west-3", "redirects": True}, ((2, "AWS_REGION"),) * 4),
    "addressing": ({"virtual_host": "s3.test"}, ((2, "objectStoreAddressing=VIRTUAL"),) * 4),
    "endpoint": (_refused(405, "MethodNotAllowed"), ((2, "objectStoreEndpoint"),) * 4),
    "checksum": (
        {"checksum_status": 400},
        ((2, "objectStoreUploadChecksum=NONE"), WORKS, (2, "objectStoreUploadChecksum"), WORKS),
    ),
    "unknown checksum": (
        {"checksum_status": 501},
        ((2, "objectStoreUploadChecksum=NONE"), WORKS, (2, "objectStoreUploadChecksum"), WORKS),
    ),
    "race": ({"race_s": 0.03}, ((2, "two owners"), WORKS, (2, "two owners"), WORKS)),
    "condition": (
        {"ignores_condition": True},
        ((2, "two owners"), WORKS, (2, "two owners"), WORKS),
    ),
    "tags": ({"e_tags": False}, ((2, "ETag"), WORKS, (2, "ETag"), WORKS)),
    "ranges": ({"ranges": False}, ((2, "range requested"),) * 4),
    "token of no page": ({"tokens": "missing", "page_max": 1}, ((2, "more follows"),) * 4),
    "repeated token": (
        {"tokens": "repeated", "page_max": 1},
        ((2, "in a circle"), WORKS, (2, "in a circle"), (2, "in a circle")),
    ),
    "circle": (
        {"tokens": "circle", "page_max": 1},
        ((2, "in a circle"), WORKS, (2, "in a circle"), (2, "in a circle")),
    ),
    "small pages": ({"empty_pages": True, "page_max": 2}, (WORKS,) * 4),
    "no bulk deletion": ({"bulk_delete": False}, (WORKS,) * 4),
    "delay": ({"delay_s": 0.02}, (WORKS,) * 4),
    "asked again": (_refused(400, "RequestTimeout"), ((3, "try again"),) * 4),
    "conflict": (_refused(409, "OperationAborted"), ((3, "try again"),) * 4),
    "full": (_refused(507), ((3, "507"),) * 4),
    "lost replies": (
        _refused(507, methods="PUT", acts=True),
        ((3, "507"), WORKS, (3, "507"), WORKS),
    ),
}
"""What differs, and what then becomes of a start, a read, a deletion and a check."""
LIKE_OTHERS = {
    *("access to objects", "access to listings", "access to deletions", "locked objects"),
    *("nobody", "secret", "clock", "token", "payer", "region", "redirection", "addressing"),
    *("endpoint", "unknown checksum", "condition", "repeated token", "small pages", "full"),
}
"""One like each is met by day."""
RUN_BY_DAY = {
    *("access", "access to writes", "bucket", "race", "circle", "no bulk deletion"),
    *("conflict", "lost replies"),
}
"""`tier` meets more of them by day."""


def by_day(names: Container[str]) -> pytest.MarkDecorator:
    """All oddities; the others by night."""
    given = [
        pytest.param(one, marks=[] if one in names else [pytest.mark.nightly]) for one in ODDITIES
    ]
    return pytest.mark.parametrize("name", given)


@pytest.mark.slow
@by_day(ODDITIES.keys() - LIKE_OTHERS)
def test_each_oddity_has_its_statuses_and_sentences_and_loses_nothing(
    reach: Any, store: Path, name: str
) -> None:
    odd, expected = ODDITIES[name]
    words: dict[str, list[str | Path]] = {
        "start": [*NAMED, "tier", store],
        "read": ["read", "Orders", "0"],
        "delete": [*NAMED, "delete-topic", "Others"],
        "list": ["check"],
    }
    verdicts = dict(zip(words, expected, strict=True))
    with reach() as server:
        usual = {one: getattr(server.odd, one) for one in odd}

        def become(values: dict[str, Any]) -> None:
            for one, value in copy.deepcopy(values).items():
                setattr(server.odd, one, value)

        def meet(verb: str) -> None:
            status, cure = verdicts[verb]
            done = invoke(*TIER, *words[verb])
            assert done.exit_code == status, (verb, done.output)
            assert not status or cure in sentence(done, status)

        become(odd)
        meet("start")
        become(usual)
        assert invoke(*TIER, *words["start"]).exit_code == 0
        become(odd)
        for verb in ("read", "list", "delete"):
            meet(verb)
        become(usual)
        again = invoke(*TIER, *words["delete"])
        assert again.exit_code == (0 if verdicts["delete"][0] else 1), again.output
        assert_whole()


WAITED = {
    *("access", "access to writes", "access to objects", "access to listings"),
    *(
        "access to deletions",
        "locked objects",
        "nobody",
        "key",
        "secret",
        "clock",
        "token",
        "payer",
    ),
}
"""Refusals that may pass without a change here, which `run` waits out."""


@pytest.mark.slow
@by_day(RUN_BY_DAY)
def test_a_run_meets_each_oddity_and_loses_nothing(
    reach: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for `tieredStoreStartTimeout` where that may help. Its messages are kept."""
    begun: list[None] = []

    def end() -> None:
        begun.append(signal.raise_signal(signal.SIGTERM))  # the loop gets it in its next turn

    monkeypatch.setattr("tieredstore.cli.commands.run.keep_opened", end)
    own = [
        *NAMED,
        "-D",
        f"storePathRootDir={tmp_path / 'own'}",
        "-D",
        "tieredStoreStartTimeout=700",
    ]
    odd, ((status, cure), *_) = ODDITIES[name]
    if name in WAITED:
        status = 3

    def run(status: int, cure: str) -> None:
        begun.clear()
        done = invoke(*TIER, *own, "run")
        assert done.exit_code == status, done.output
        assert bool(begun) is not bool(status)
        if status:
            said = complaints(done.stderr).splitlines()[-1]
            assert cure in said
            assert ("tieredStoreStartTimeout" in said) is (status == 3)

    with reach() as server:
        assert invoke(*own, "put", "Orders", *"0123456789").exit_code == 0
        usual = {one: getattr(server.odd, one) for one in odd}
        for one, value in copy.deepcopy(odd).items():
            setattr(server.odd, one, value)
        run(status, cure)
        for one, value in usual.items():
            setattr(server.odd, one, value)
        if status:
            run(0, "")
        assert_whole()


WRONG = [
    *(("AWS_ENDPOINT_URL", f"http://{one}") for one in ("127.0.0.1:99999", "127.0.0.1:x", "[::1")),
    *(("HTTP_PROXY", f"http://{one}") for one in ("", "127.0.0.1:99999", "[::1")),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_urls_without_a_host_or_a_port_are_wrong_use(
    reach: Any, store: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reach():
        monkeypatch.setenv(name, value)
        for words in (["topics"], [*NAMED, "tier", store]):
            assert name in sentence(invoke(*TIER, *words), 2)


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_REGION", "eu west"), ("AWS_CA_BUNDLE", " "), ("AWS_PROFILE", "x")]
)
def test_settings_that_boto3_refuses_are_wrong_use_of_doctor(
    reach: Any, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reach():
        monkeypatch.setenv(name, value)
        done = invoke("doctor", "s3://odd/t")
        assert done.exit_code == 2, done.output
        assert "boto3 refuses the settings" in done.stderr
