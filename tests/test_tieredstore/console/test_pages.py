"""The pages of the console: what they show, of hostile names and bodies too, and their guard."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlencode

import pytest
from starlette.types import ASGIApp

from provider.clock import SystemClock
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.console.browser import HEX, HEX_BYTES_MAX, JSON, TEXT, shown_body, visible
from tieredstore.console.guard import BURST
from tieredstore.console.history import NAME_LENGTH_MAX, LagHistory
from tieredstore.console.options import ConsoleOptions
from tieredstore.console.pages import guarded_pages
from tieredstore.console.tiers import GroupLag, shown_tiers
from tieredstore.session.reader import existing_tiers


class Answer(NamedTuple):
    """Answer of an application."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


async def ask(app: ASGIApp, target: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request; `_` in the name of a header is a `-`."""
    path, _, query = target.partition("?")
    given = {"host": "127.0.0.1:8077"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(path).decode(),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8077),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    heads = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return Answer(sent[0]["status"], heads, body)


SCRIPT = "<script>alert('x')</script>\"&\u202e\x1b[31m"
TOPIC = "/b/C/b/t/%25RETRY%25%3Cb%3E"
"""Address of the topic `%RETRY%<b>`."""
TOKEN = "0123456789abcdef"
LOCAL = ConsoleOptions("127.0.0.1", 8077)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with hostile messages in one topic, and 250 queues in another; read only."""
    directory = tmp_path_factory.mktemp("console")
    store = FakeBroker(directory / "store", commit_log_bytes=8 << 20)
    store.put("%RETRY%<b>", 0, SCRIPT.encode(), tags=SCRIPT, keys="key<i>")
    store.put(
        "%RETRY%<b>",
        0,
        b'{"a": [1e400, "</script>"], "a": {}}',
        tags="TagA",
        properties={SCRIPT: SCRIPT},
    )
    store.put("%RETRY%<b>", 0, b"\xff\x00" * (2 << 20))
    store.put_many("%RETRY%<b>", 1, [b"body"] * 120)
    for number in range(250):
        store.put("wide", number)
    names = ("-D", "brokerClusterName=C", "-D", "brokerName=b")
    run(*names, "--tier", directory / "tier", "tier", store.directory)
    return directory / "tier"


class Pages:
    """Asks the pages of a tier."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, target: str, method: str = "GET", **headers: str) -> Answer:
        return await ask(self._app, target, method, **headers)


SVG = r'role="img"><title>([^<]*)</title><path d="([^"]*)"/></svg>'


@asynccontextmanager
async def pages_of(
    tier: Path | str,
    options: ConsoleOptions = LOCAL,
    history: LagHistory | None = None,
    **settings: object,
) -> AsyncGenerator[Pages]:
    config = Config.named(tier, None, None, None, settings)
    configs = await asyncio.to_thread(existing_tiers, config, ["*"])
    clock = SystemClock()
    async with shown_tiers(configs, clock) as tiers:
        yield Pages(await guarded_pages(tiers, history or LagHistory(), options, clock))


def rows_of(answer: Answer) -> int:
    """Rows of the table of a page."""
    return len(re.findall(r"<tr>", answer.text)) - 1


async def test_brokers_topics_and_queues_are_shown_and_paged(tier: Path) -> None:
    async with pages_of(tier) as get:
        assert '<a href="/b/C/b">' in (await get("/")).text
        broker = await get("/b/C/b")
        assert "252 queues, 373 messages" in broker.text
        assert f'<a href="{TOPIC}">' in broker.text
        assert rows_of(await get("/b/C/b?q=wid")) == 1
        first, last = await get("/b/C/b/t/wide"), await get("/b/C/b/t/wide?page=3")
        assert (rows_of(first), rows_of(last)) == (100, 50)
        assert 'rel="next"' in first.text
        assert 'rel="next"' not in last.text
        for page in ("0", "4", "x", "9" * 30, "\u00b2"):
            assert (await get(f"/b/C/b/t/wide?{urlencode({'page': page})}")).status == 400


async def test_the_cost_of_a_month_is_forecast_for_a_tier_in_an_object_store(
    tier: Path, tmp_path: Path
) -> None:
    place = f"memory://console-{tmp_path.name}/tier"
    store = FakeBroker(tmp_path / "store")
    store.put("T", 0)
    names = ("-D", "brokerClusterName=C", "-D", "brokerName=b")
    run(*names, "--tier", place, "tier", store.directory)
    async with pages_of(place) as get:
        assert 'href="/b/C/b/cost"' in (await get("/b/C/b")).text
        assert rows_of(await get("/b/C/b/cost")) == -1
        page = await get("/b/C/b/cost?rate=20MB/s&retention=30d&topics=200")
        table = [re.sub(r"<[^>]+>", " ", row).split() for row in page.text.split("<tr>")[2:]]
        printed = run("--tier", place, "config", "--cost", "20MB/s", "--topics", "200").out
        assert [row[:6] for row in table] == [
            line.split()[:6] for line in printed.splitlines()[4:9]
        ]
        for wrong in ("rate=20", "rate=1MB/s&retention=1"):
            assert (await get(f"/b/C/b/cost?{wrong}")).status == 400
        for topics in ("x", "0", "1000001", "9" * 30):
            assert (await get(f"/b/C/b/cost?rate=1MB/s&topics={topics}")).status == 400
    async with pages_of(tier) as get:
        assert "/cost" not in (await get("/b/C/b")).text
        assert (await get("/b/C/b/cost")).status == 404


async def test_a_queue_is_browsed_forth_and_back(tier: Path) -> None:
    async with pages_of(tier) as get:
        page = await get(f"{TOPIC}/messages?queue=1")
        offsets = [int(one) for one in re.findall(rf'href="{TOPIC}/1/(\d+)"', page.text)]
        while found := re.search(r'rel="next" href="\?([^"]*)"', page.text):
            page = await get(f"{TOPIC}/messages?{found[1].replace('&amp;', '&')}")
            offsets += map(int, re.findall(rf'href="{TOPIC}/1/(\d+)"', page.text))
        assert offsets == list(range(120))
        assert 'href="?queue=1&amp;offset=50"' in page.text


async def test_messages_are_found_by_key_tag_and_time(tier: Path) -> None:
    async with pages_of(tier) as get:
        for fields, rows in (
            ({"key": "key<i>"}, 1),
            ({"tag": "TagA"}, 1),
            ({"since": "2020-01-01"}, 3),
            ({"since": "2999-01-01"}, -1),
        ):
            page = await get(f"{TOPIC}/messages?{urlencode(fields)}")
            assert (page.status, rows_of(page)) == (200, rows), fields
        for wrong in ({"since": "soon"}, {"offset": "-1"}, {"queue": "7"}):
            assert (await get(f"{TOPIC}/messages?{urlencode(wrong)}")).status == 400


async def test_hostile_texts_are_escaped_on_every_page(tier: Path) -> None:
    async with pages_of(tier) as get:
        for target in (
            "/b/C/b",
            TOPIC,
            f"{TOPIC}/messages",
            f"{TOPIC}/messages?{urlencode({'tag': SCRIPT, 'key': SCRIPT})}",
            f"{TOPIC}/0/0",
            f"{TOPIC}/0/0?view=text",
            f"{TOPIC}/0/1",
            f"/b/C/b?{urlencode({'q': SCRIPT})}",
            f"/b/C/b/t/{urlencode({'': SCRIPT})[1:]}",
        ):
            page = await get(target)
            assert (
                re.findall(r"<script(?! src=\"/static/)|<b>|<i>|style=|\bon\w+=", page.text) == []
            )
            shown = re.sub(r"<(input|a)\b[^>]*>", "", page.text)
            assert "\u202e" not in shown
            assert "\x1b" not in shown
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert page.headers["x-content-type-options"] == "nosniff"


async def test_a_large_body_is_cut_and_downloaded_whole(tier: Path) -> None:
    async with pages_of(tier) as get:
        page = await get(f"{TOPIC}/0/2")
        assert len(page.body) < 10 * HEX_BYTES_MAX
        assert "Only the first bytes are shown" in page.text
        assert "Properties" not in page.text  # it has none, and a table without rows says nothing
        assert "Properties" in (await get(f"{TOPIC}/0/1")).text
        raw = await get(f"{TOPIC}/0/2/body")
        assert raw.body == b"\xff\x00" * (2 << 20)
        assert raw.headers["content-type"] == "application/octet-stream"
        assert raw.headers["content-disposition"].startswith("attachment;")
        assert (await get(f"{TOPIC}/0/2/body", "HEAD")).status == 200


async def test_what_is_not_there_is_a_page_that_says_so(tier: Path) -> None:
    async with pages_of(tier) as get:
        for target in ("/x", "/b/C/none", "/b/C/b/t/none", f"{TOPIC}/0/3", f"{TOPIC}/9/0"):
            assert (await get(target)).status == 404, target
        for number in (1 << 31, 1 << 64, "9" * 40):
            assert (await get(f"{TOPIC}/{number}/{number}")).status == 404
        assert (await get("/static/..%2fguard.py")).status == 404


async def test_groups_have_their_lag(
    tier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = '{"offsetTable":{"wide@G":{0:1,1:0},"none@G":{0:0}}}'
    (tmp_path / "consumerOffset.json").write_text(offsets)
    async with pages_of(tier, tieredStoreServeStatePath=tmp_path) as get:
        page = (await get("/b/C/b/groups")).text
        assert re.findall(r'class="n">(\d+)</td>', page) == ["2", "1"]
        assert "<svg" not in page
        (tmp_path / "consumerOffset.json").write_text("damaged")
        page = await get("/b/C/b/groups")
        assert (page.status, "are damaged" in page.text) == (500, True)
        (tmp_path / "consumerOffset.json.bak").write_text(offsets)
        assert (await get("/b/C/b/groups")).status == 200
    assert not [one for one in caplog.records if one.name == "tieredstore.offsets"]


async def test_brokers_have_a_line_of_what_is_not_tiered_yet(tier: Path) -> None:
    history, now_s = LagHistory(), SystemClock().monotonic_s()
    for before_s, behind in ((3600, 0), (31, 1200), (1, 1030)):
        chosen = history.round_of({}, {("C", "b"): behind})
        history.record(now_s - before_s, chosen)
    async with pages_of(tier, history=history) as get:
        brokers, broker = (await get("/")).text, (await get("/b/C/b")).text
        assert '<td class="n">1,030</td>' in brokers
        assert "</svg> 0 to 1,200 messages in the last 2 h" in broker
        title = "not tiered: 0 to 1,200 messages in the last 60 min, now 1,030"
        assert re.findall(SVG, brokers) == re.findall(SVG, broker)
        assert [one for one, _ in re.findall(SVG, brokers)] == [title]
    async with pages_of(tier) as get:
        assert "<svg" not in (await get("/")).text + (await get("/b/C/b")).text


async def test_groups_have_a_line_of_their_lag_over_time(tier: Path, tmp_path: Path) -> None:
    group, history, now_s = f"<b>{SCRIPT}", LagHistory(), SystemClock().monotonic_s()
    offsets = {"offsetTable": {"wide@G": {0: 1, 1: 0}, f"wide@{group}": {0: 0}}}
    (tmp_path / "consumerOffset.json").write_text(json.dumps(offsets))
    for before_s, lag in ((3600, 0), (1800, 1200), (1770, 40)):
        known = [GroupLag(name, "wide", 1, lag) for name in ("G", group)]
        long = GroupLag("g" * (NAME_LENGTH_MAX + 1), "wide", 1, 0)
        history.record(now_s - before_s, history.round_of({("C", "b"): [*known, long]}, {}))
    async with pages_of(tier, history=history, tieredStoreServeStatePath=tmp_path) as get:
        page = await get("/b/C/b/groups")
    assert "<title>lag of G at wide: 0 to 1,200 messages in the last 60 min, now 1</title>" in (
        page.text
    )
    assert "<title>lag of &lt;b&gt;&lt;script&gt;alert" in page.text
    ((_, path), _) = re.findall(SVG, page.text)
    assert path == "M120 30h0M180 2h0L181 29M240 30h0"
    assert "Groups and topics without a line: 1." in page.text
    assert re.findall(r"<script(?! src=\"/static/)|<b>|style=|\bon\w+=|\u202e", page.text) == []


async def test_only_reads_of_this_host_are_answered(tier: Path) -> None:
    async with pages_of(tier) as get:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await get("/", method)).status == 405
        for host in ("127.0.0.1", "localhost:9", "[::1]:8077", "127.0.0.2:1"):
            assert (await get("/", host=host)).status == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example:8077", "", "[::1", "localhost."):
            assert (await get("/", host=host)).status == 421, host
        answers = [(await get("/static/console.css")).status for _ in range(int(BURST) + 50)]
        assert 429 in answers
        assert answers[0] == 200


async def test_a_token_opens_the_pages_by_bearer_link_and_cookie(tier: Path) -> None:
    async with pages_of(tier, ConsoleOptions("0.0.0.0", 8077, TOKEN)) as get:
        for headers in (
            {},
            {"authorization": "Bearer no"},
            {"authorization": f"Basic {TOKEN}"},
            {"cookie": f"tieredstore_console={TOKEN}"},
            {"cookie": "tieredstore_console=\u00e9"},
        ):
            assert (await get("/", host="console.example", **headers)).status == 401, headers
        assert (await get("/", authorization=f"Bearer {TOKEN}")).status == 200
        linked = await get(f"//evil.example/?token={TOKEN}")
        assert (linked.status, linked.headers["location"]) == (303, "/evil.example/")
        cookie, *flags = linked.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=lax"} <= set(flags)
        assert TOKEN not in cookie
        page = await get("/", cookie=cookie)
        assert page.status == 200
        assert TOKEN not in page.text
        assert (await get("/?token=wrong")).status == 401


def test_an_address_of_the_network_needs_a_token(tmp_path: Path) -> None:
    def options(**given: object) -> ConsoleOptions:
        return ConsoleOptions.of(Config.named(tmp_path, None, None, None, given))

    assert options().token == ""
    host = {"tieredStoreConsoleHost": "0.0.0.0"}
    with pytest.raises(ConfigError, match="tieredStoreConsoleTokenPath"):
        options(**host)
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="no such file"):
        options(**host, tieredStoreConsoleTokenPath=path)
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="16 characters"):
        options(**host, tieredStoreConsoleTokenPath=path)
    path.write_text(f"{TOKEN}\n")
    found = options(**host, tieredStoreConsoleTokenPath=path)
    assert found.token == TOKEN
    assert TOKEN not in repr(found)


def test_bodies_have_the_forms_that_fit() -> None:
    as_json = shown_body(b'{"n":1.00,"n":[],"deep":[{"x":123456789012345678901}]}', None)
    assert as_json.forms == (JSON, TEXT, HEX)
    assert '\n  "n": 1.00,\n  "n": [],\n' in as_json.text
    assert "123456789012345678901" in as_json.text
    assert shown_body(b"[" * 60_000, None).forms == (TEXT, HEX)
    assert shown_body("\u00e9".encode() * 40_000, None).is_cut
    assert shown_body(b"\xff", TEXT).form == HEX
    assert shown_body(b"\xffA", HEX).text.split() == ["00000000", "ff", "41", ".A"]
    assert shown_body(b"", None).text == ""
    assert visible("a\r\n\t\u202eb") == "a\n\t\\u202eb"
