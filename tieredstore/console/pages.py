"""Pages of the console: an ASGI application over open tiers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from itertools import islice
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from container.names.rocketmq import INT32_MAX, INT64_MAX
from container.record.properties import KEYS
from provider.clock import Clock
from provider.errors import NotFound, StoreError, Unavailable
from tieredstore.config.prices import (
    TOPICS_MAX,
    Load,
    forecast,
    forecast_notes,
    forecast_rows,
    rate_of,
    span_of,
)
from tieredstore.console.browser import (
    Query,
    browse,
    number_of,
    preview,
    shown_body,
    visible,
)
from tieredstore.console.guard import Guard
from tieredstore.console.history import BOX, LagHistory, LagLine
from tieredstore.console.options import ConsoleOptions
from tieredstore.console.tiers import ShownTier, TierName
from tieredstore.message import Message
from tieredstore.reader.status import status_rows, tier_status
from tieredstore.texts import count_text, escaped, size_text, time_text
from tieredstore.version import VERSION

ROWS = 100
"""Rows of a page."""
STATIC = {"console.css": "text/css", "console.js": "text/javascript"}
GAPS_SHOWN = 100
COST_FORM = {"rate": "", "retention": "30d", "topics": "100"}
RowT = TypeVar("RowT")
Handler = Callable[[Request], Awaitable[Response]]


class Console:
    """Handlers of the pages."""

    def __init__(
        self, tiers: Mapping[TierName, ShownTier], history: LagHistory, clock: Clock
    ) -> None:
        """Read templates and static files. Blocks."""
        self._tiers = tiers
        self._history = history
        self._clock = clock
        self._templates = Environment(
            loader=PackageLoader("tieredstore.console"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = {"count": count_text, "size": size_text, "time": time_text, "shown": escaped}
        given = cast("Any", self._templates)  # Jinja2 types neither of the two
        given.filters.update(filters, visible=visible, path=path_of)
        given.globals["version"] = VERSION
        for name in self._templates.list_templates():
            self._templates.get_template(name)
        static = files("tieredstore.console") / "static"
        self._static = {name: (static / name).read_bytes() for name in STATIC}

    def application(self) -> Starlette:
        """Return the application, without the guard in front of it."""
        broker = "/b/{cluster}/{broker}"
        topic = broker + "/t/{topic}"
        message = topic + "/{queue:int}/{offset:int}"
        pages: Mapping[str, Handler] = {
            "/": self.brokers,
            "/static/{name}": self.static,
            broker: self.broker,
            broker + "/groups": self.groups,
            broker + "/cost": self.cost,
            topic: self.topic,
            topic + "/messages": self.messages,
            message: self.message,
            message + "/body": self.body,
        }
        return Starlette(
            routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()],
            exception_handlers={
                HTTPException: self._failed,
                StoreError: self._failed,
                ValueError: self._failed,
            },
        )

    async def brokers(self, request: Request) -> Response:
        """Show every broker with its sums, and what keeps it from being shown."""
        rows = [
            (*name, one, await self._sums(one), self._tiering_line(name))
            for name, one in self._tiers.items()
        ]
        return self._page(request, "brokers.html", rows=rows, box=BOX)

    async def broker(self, request: Request) -> Response:
        """Show the status of a tier, its topics and its gaps."""
        shown = self._shown(request)
        tier = await shown.fresh()
        status = await tier_status(tier, shown.config, await shown.contents())
        wanted = request.query_params.get("q", "").strip()
        topics = [one for one in (await shown.topics()).items() if wanted.lower() in one[0].lower()]
        gaps = (
            (queue, gap)
            for queues in (await shown.by_topic()).values()
            for queue in queues
            for gap in queue.gaps
        )
        return self._page(
            request,
            "broker.html",
            status=[*status_rows(status, self._clock.now_ms()), *_damage(shown)],
            is_well=status.is_well and not shown.trouble,
            in_object_store=shown.config.in_object_store,
            wanted=wanted,
            total=len(topics),
            line=self._tiering_line((shown.config.cluster, shown.config.broker)),
            box=BOX,
            gaps=list(islice(gaps, GAPS_SHOWN)),
            **_paged(request, topics),
        )

    async def topic(self, request: Request) -> Response:
        """Show the queues of a topic."""
        queues = await self._queues(request)
        return self._page(request, "topic.html", total=len(queues), **_paged(request, queues))

    async def groups(self, request: Request) -> Response:
        """Show consumer groups and their lag, now and over time."""
        found = await self._shown(request).groups()
        tier = request.path_params["cluster"], request.path_params["broker"]
        return self._page(
            request,
            "groups.html",
            line_of=partial(self._history.line, tier, self._clock.monotonic_s()),
            box=BOX,
            left_out=self._history.left_out(tier),
            total=len(found),
            **_paged(request, found),
        )

    async def cost(self, request: Request) -> Response:
        """Show a form, and the forecast of a month for what it has."""
        config = self._shown(request).config
        if not config.in_object_store:
            raise HTTPException(
                HTTPStatus.NOT_FOUND, "a tier in a directory has no requests to pay"
            )
        given = {**COST_FORM, **request.query_params}
        prices = await asyncio.to_thread(lambda: config.prices)
        rows, notes = list[tuple[str, ...]](), list[str]()
        if given["rate"]:
            topics = number_of(given["topics"])
            if not 1 <= topics <= TOPICS_MAX:
                raise ValueError(f"a forecast is for 1 to {TOPICS_MAX} topics")
            queues = topics * int(config.settings["defaultTopicQueueNums"].value)
            load = Load(rate_of(given["rate"]), span_of(given["retention"]), queues)
            rows = forecast_rows(forecast(load, config.request_limits, prices))
            notes = [str(load), *forecast_notes(load, config.request_limits, prices)]
        shown = {"given": given, "rows": rows, "notes": notes, "currency": prices.currency}
        return self._page(request, "cost.html", **shown)

    async def messages(self, request: Request) -> Response:
        """Show messages of a queue from an offset or a time on, or those of a topic with a key."""
        queues = await self._queues(request)
        tier = await self._shown(request).fresh()
        query = Query.of(request.query_params, queues, self._clock.now_ms())
        found = await browse(tier, query, self._clock)
        forward = None if found.next_offset is None else query.moved(found.next_offset)
        lowest = next(one.min_offset for one in queues if one.queue_id == query.queue_id)
        back = query.moved(max(lowest, found.first_offset - query.rows))
        return self._page(
            request,
            "messages.html",
            query=query,
            queues=[one.queue_id for one in queues[:ROWS]],
            rows=[_row(one) for one in found.messages],
            notes=found.notes,
            forward=None if forward is None else urlencode(forward),
            back=urlencode(back) if not query.key and found.first_offset > lowest else None,
        )

    async def message(self, request: Request) -> Response:
        """Show one message."""
        message = await self._message(request)
        return self._page(
            request,
            "message.html",
            message=message,
            body=shown_body(message.body, request.query_params.get("view")),
            properties=sorted(message.properties.items()),
            keys=message.keys,
        )

    async def body(self, request: Request) -> Response:
        """Give the bytes of a body, as a file to be saved."""
        message = await self._message(request)
        name = quote(f"{message.topic}-{message.queue_id}-{message.offset}.bin", safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(message.body, headers=headers, media_type="application/octet-stream")

    async def static(self, request: Request) -> Response:
        """Give a style sheet or a script."""
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        headers = {"Cache-Control": "max-age=3600"}
        return Response(self._static[name], headers=headers, media_type=STATIC[name])

    def _shown(self, request: Request) -> ShownTier:
        names = request.path_params
        found = self._tiers.get((names["cluster"], names["broker"]))
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such broker")
        return found

    async def _queues(self, request: Request):  # noqa: ANN202 - of `by_topic`
        found = (await self._shown(request).by_topic()).get(request.path_params["topic"])
        if not found:
            raise HTTPException(HTTPStatus.NOT_FOUND, "the tier has no such topic")
        return found

    async def _message(self, request: Request) -> Message:
        names = request.path_params
        queue, offset = names["queue"], names["offset"]
        if queue > INT32_MAX or offset > INT64_MAX:
            raise HTTPException(HTTPStatus.NOT_FOUND, "the tier has no such message")
        tier = await self._shown(request).fresh()
        async for message in tier.messages(names["topic"], queue, offset, messages_max=1):
            if message.offset == offset:
                return message
        raise HTTPException(HTTPStatus.NOT_FOUND, "the message was lost or deleted")

    async def _sums(self, one: ShownTier) -> tuple[int, int, int, int | None]:
        """Topics, messages, bytes and newest time of a broker."""
        if one.tier is None:
            return 0, 0, 0, None
        totals = (await one.contents()).totals
        return len(await one.by_topic()), totals.messages, totals.bytes, totals.last_timestamp

    def _tiering_line(self, tier: TierName) -> LagLine | None:
        return self._history.tiering_line(tier, self._clock.monotonic_s())

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Show why there is no page."""
        status, text = _status_of(error)
        page = self._page(request, "error.html", status=status, text=text)
        page.status_code = status
        return page

    def _page(self, request: Request, name: str, **values: object) -> Response:
        names = {"cluster": "", "broker": "", "topic": ""} | request.path_params
        template = self._templates.get_template(name)
        return HTMLResponse(template.render(names=names, **values))


def _status_of(error: Exception) -> tuple[HTTPStatus, str]:
    if isinstance(error, HTTPException):
        return HTTPStatus(error.status_code), error.detail
    if isinstance(error, ValueError):
        return HTTPStatus.BAD_REQUEST, str(error)
    if isinstance(error, NotFound):
        return HTTPStatus.NOT_FOUND, str(error)
    is_away = isinstance(error, Unavailable)
    status = HTTPStatus.SERVICE_UNAVAILABLE if is_away else HTTPStatus.INTERNAL_SERVER_ERROR
    return status, str(error)


def _damage(shown: ShownTier) -> list[tuple[str, str]]:
    rows = [("trouble", shown.trouble)] if shown.trouble else []
    if shown.tier is not None and shown.tier.damage is not None:
        rows.append(("damage", f"the journal is damaged: {shown.tier.damage}"))
    return rows


def path_of(parts: Sequence[object]) -> str:
    """Path of an URL; names may have any characters."""
    return "".join(f"/{quote(str(one), safe='')}" for one in parts)


def _row(message: Message) -> dict[str, object]:
    return {
        "queue_id": message.queue_id,
        "offset": message.offset,
        "time": message.store_timestamp,
        "size": len(message.body),
        "tags": message.tags,
        "keys": message.properties.get(KEYS, ""),
        "preview": preview(message.body),
    }


def _paged(request: Request, rows: Sequence[RowT]) -> dict[str, object]:
    """The rows of the page that is asked for, and numbers of pages."""
    pages = max(1, -(-len(rows) // ROWS))
    page = number_of(request.query_params.get("page", "1"))
    if not 1 <= page <= pages:
        raise ValueError(f"there are pages 1 to {pages}")
    return {"rows": rows[(page - 1) * ROWS : page * ROWS], "page": page, "pages": pages}


async def guarded_pages(
    tiers: Mapping[TierName, ShownTier], history: LagHistory, options: ConsoleOptions, clock: Clock
) -> ASGIApp:
    """Build the application that is served."""
    console = await asyncio.to_thread(Console, tiers, history, clock)
    return Guard(console.application(), options, clock)
