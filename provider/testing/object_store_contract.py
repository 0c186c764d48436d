"""Promises of `ObjectStore` and `AppendingStore` as tests, for any implementation.

Subclass, override the `store` fixture, and let pytest (asyncio mode "auto") collect it. A store
may add tests, never remove one.
"""

# ruff: noqa: D102, ARG002 - test names are the sentences; a fixture may need another to be made

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from provider.errors import AlreadyExists, Closed, NotFound, OutOfRange
from provider.object_store import (
    Append,
    AppendingStore,
    ObjectStore,
    ReplacingStore,
    read_now_of,
)
from provider.ranges import ByteRange

BAD_NAMES = [
    "",
    "/a",
    "a/",
    "a//b",
    "./a",
    "a/../b",
    "..",
    "a\0b",
    "a\nb",
    "a\\b",
    "x" * 256,
    "a/@tmp-1",
    "\udc80",
]


async def names_of(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    """Return the names of a listing, in its order."""
    return [entry.name for entry in await store.list(prefix, after=after)]


async def is_refused(call: Awaitable[object]) -> bool:
    """Whether a call with an unsafe name says so."""
    try:
        await call
    except ValueError as error:
        return "object name" in str(error)
    return False


class ObjectStoreContract:
    """Tests of every store."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """The empty store under test; override it."""
        raise AssertionError("override the fixture `store`")

    async def test_what_was_created_reads_back_equal(self, store: ObjectStore) -> None:
        await store.create("t/0/log", [b"abc", bytearray(b"def"), memoryview(b"ghi")])
        assert bytes(await store.read("t/0/log")) == b"abcdefghi"
        assert bytes(await store.read("t/0/log", ByteRange(2, 7))) == b"cdefg"
        assert await store.size("t/0/log") == 9

    async def test_an_object_may_be_empty(self, store: ObjectStore) -> None:
        await store.create("empty", [])
        assert bytes(await store.read("empty")) == b""
        assert await store.size("empty") == 0

    async def test_a_large_object_reads_back_equal(self, store: ObjectStore) -> None:
        body = bytes(range(256)) * (5 << 12)
        await store.create("large", [body[:1000], body[1000:]])
        assert bytes(await store.read("large")) == body
        wanted = ByteRange(123, len(body) - 45)
        for _ in range(2):
            assert bytes(await store.read("large", wanted)) == body[123:-45]

    async def test_a_name_is_created_once_and_keeps_its_first_bytes(
        self, store: ObjectStore
    ) -> None:
        await store.create("once", [b"first"])
        with pytest.raises(AlreadyExists) as caught:
            await store.create("once", [b"second"])
        assert caught.value.path == "once"
        assert bytes(await store.read("once")) == b"first"

    async def test_of_many_that_create_one_name_exactly_one_wins(self, store: ObjectStore) -> None:
        async def attempt(body: bytes) -> bytes | None:
            try:
                await store.create("race", [body])
            except AlreadyExists:
                return None
            return body

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(attempt(b"%d" % number)) for number in range(8)]
        winners = [task.result() for task in tasks if task.result() is not None]
        assert winners == [bytes(await store.read("race"))]

    async def test_a_read_past_the_end_is_an_error_and_never_short(
        self, store: ObjectStore
    ) -> None:
        await store.create("short", [b"abc"])
        for _ in range(2):
            with pytest.raises(OutOfRange) as caught:
                await store.read("short", ByteRange(1, 4))
            assert not isinstance(caught.value, NotFound)
            assert (caught.value.path, caught.value.position) == ("short", 1)
        with pytest.raises(OutOfRange):
            await store.read_many([("short", ByteRange(0, 3)), ("short", ByteRange(3, 4))])

    async def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        await store.create("folder/object", [b"x"])
        for name in ("absent", "folder", "folder/absent", "folder/object/below"):
            with pytest.raises(NotFound):
                await store.read(name)
            with pytest.raises(NotFound):
                await store.read(name, ByteRange(0, 1))
            with pytest.raises(NotFound):
                await store.size(name)
            with pytest.raises(NotFound):
                await store.read_many([(name, ByteRange(0, 1))])

    async def test_many_ranges_come_in_the_order_of_the_question(self, store: ObjectStore) -> None:
        body = bytes(range(256)) * 8192
        await store.create("a", [body])
        await store.create("b", [b"0123456789"])
        wanted = [
            ("b", ByteRange(5, 7)),
            ("a", ByteRange(0, len(body))),
            ("b", ByteRange(0, 10)),
            ("a", ByteRange(3, 5)),
            ("b", ByteRange(5, 7)),
        ]
        for _ in range(2):
            found = [bytes(part) for part in await store.read_many(wanted)]
            assert found == [b"56", body, b"0123456789", b"\3\4", b"56"]
        assert await store.read_many([]) == []

    async def test_a_read_at_once_equals_the_read_or_is_none(self, store: ObjectStore) -> None:
        await store.create("q/a", [b"0123456789"])
        read_now = read_now_of(store)
        if read_now is None:
            return
        assert read_now("q/absent", 0, 1) is None
        assert read_now("../a", 0, 1) is None
        assert bytes(await store.read("q/a", ByteRange(2, 5))) == b"234"
        for start, length in ((0, 10), (2, 3), (9, 1)):
            assert bytes(read_now("q/a", start, length) or b"") in {
                b"0123456789"[start:][:length],
                b"",
            }
        found = read_now("q/a", 2, 3)
        assert found is None or bytes(read_now("q/a", 3, 2, follows=True) or b"34") == b"34"
        assert read_now("q/a", 5, 6) is None
        await store.delete(["q/a"])
        assert read_now("q/a", 2, 3) is None
        await store.close()
        assert read_now("q/a", 2, 3) is None

    async def test_a_returned_buffer_is_the_callers_own(self, store: ObjectStore) -> None:
        given = bytearray(b"abcdef")
        await store.create("own", [given])
        given[0] = 0
        first = await store.read("own", ByteRange(0, 6))
        kept = bytes(first)
        if isinstance(first, bytearray):
            first[0] = 1
        assert bytes(await store.read("own", ByteRange(0, 6))) == kept == b"abcdef"

    async def test_a_listing_is_sorted_by_code_point_over_whole_names(
        self, store: ObjectStore
    ) -> None:
        names = ["a/b", "a-b", "a.b/c", "a/b-", "a0", "B", "é/1", "@j/01", "@j/02", "a/c/d/e"]
        for name in names:
            await store.create(name, [name.encode()])
        assert await names_of(store, "") == sorted(names)
        assert [entry.size_bytes for entry in await store.list("@j/0")] == [5, 5]

    async def test_a_prefix_is_a_plain_string_and_after_is_exclusive(
        self, store: ObjectStore
    ) -> None:
        for name in ("q/10", "q/11", "q/2", "q/1/deep", "qq", "r/1"):
            await store.create(name, [b""])
        assert await names_of(store, "q/1") == ["q/1/deep", "q/10", "q/11"]
        assert await names_of(store, "q") == ["q/1/deep", "q/10", "q/11", "q/2", "qq"]
        assert await names_of(store, "q/", "q/10") == ["q/11", "q/2"]
        assert await names_of(store, "", "q/1/deep") == ["q/10", "q/11", "q/2", "qq", "r/1"]
        assert await names_of(store, "q/1/", "q/1/a") == ["q/1/deep"]
        assert await names_of(store, "", "r") == ["r/1"]
        assert await names_of(store, "absent/") == []
        assert await names_of(store, "q/2/") == []

    async def test_a_deleted_name_is_gone_and_deleting_again_is_success(
        self, store: ObjectStore
    ) -> None:
        await store.create("d/1", [b"x"])
        await store.create("d/2", [b"y"])
        assert bytes(await store.read("d/1", ByteRange(0, 1))) == b"x"
        for _ in range(2):
            await store.delete(["d/1", "d/absent", "absent/absent"])
            with pytest.raises(NotFound):
                await store.read("d/1", ByteRange(0, 1))
        assert await names_of(store, "") == ["d/2"]
        await store.delete([])

    async def test_a_deleted_name_can_be_created_again(self, store: ObjectStore) -> None:
        await store.create("again", [b"old"])
        assert bytes(await store.read("again", ByteRange(0, 3))) == b"old"
        await store.delete(["again"])
        await store.create("again", [b"new"])
        assert bytes(await store.read("again", ByteRange(0, 3))) == b"new"

    async def test_an_unsafe_name_is_refused_by_every_verb(self, store: ObjectStore) -> None:
        for name in BAD_NAMES:
            for call in (
                store.create(name, [b"x"]),
                store.read(name),
                store.read_many([(name, ByteRange(0, 1))]),
                store.size(name),
                store.delete([name]),
            ):
                assert await is_refused(call), ascii(name)

    async def test_an_unsafe_prefix_is_refused(self, store: ObjectStore) -> None:
        for prefix in ("/", "../", "a/../b", "a\0"):
            assert await is_refused(store.list(prefix)), ascii(prefix)

    async def test_a_cancelled_create_lands_whole_or_not_at_all(self, store: ObjectStore) -> None:
        body = b"whole" * 1000
        for number in range(4):
            name = f"cancelled/{number}"
            task = asyncio.ensure_future(store.create(name, [body]))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            with suppress(AlreadyExists):  # the cancelled call has landed
                await store.create(name, [body])
            assert bytes(await store.read(name)) == body

    async def test_every_call_after_close_says_so(self, store: ObjectStore) -> None:
        await store.create("c", [b"x"])
        await store.close()
        await store.close()
        for call in (
            store.create("d", [b"x"]),
            store.read("c"),
            store.read("c", ByteRange(0, 1)),
            store.read_many([("c", ByteRange(0, 1))]),
            store.size("c"),
            store.list(""),
            store.delete(["c"]),
        ):
            with pytest.raises(Closed):
                await call


class ReplacingStoreContract(ObjectStoreContract):
    """Tests of every store whose objects can be replaced."""

    @pytest.fixture
    def store(self) -> ReplacingStore:
        raise AssertionError("override the fixture `store`")

    async def test_an_object_that_is_stored_anew_reads_back_as_it_is(
        self, store: ReplacingStore
    ) -> None:
        await store.create("t/0/log", [b"abcdef"])
        for body in ([b"wx", bytearray(b"yz")], [memoryview(b"0123456789")], []):
            await store.replace("t/0/log", body)
            assert bytes(await store.read("t/0/log")) == b"".join(body)
        assert await names_of(store, "") == ["t/0/log"]
        with pytest.raises(AlreadyExists):
            await store.create("t/0/log", [b"x"])


class AppendingStoreContract(ObjectStoreContract):
    """Additional tests of every store whose objects can grow."""

    @pytest.fixture
    def store(self) -> AppendingStore:
        """The empty store under test; override it."""
        raise AssertionError("override the fixture `store`")

    async def test_a_round_of_appends_is_seen_by_the_next_read(self, store: AppendingStore) -> None:
        await store.append([Append("t/0/log", 0, (b"abc",)), Append("t/1/log", 0, (b"x", b"y"))])
        await store.append([Append("t/0/log", 3, (b"de", b"f")), Append("t/1/log", 2, (b"z",))])
        assert bytes(await store.read("t/0/log", ByteRange(1, 6))) == b"bcdef"
        assert bytes(await store.read("t/1/log")) == b"xyz"
        await store.append([])

    async def test_pieces_of_one_object_follow_one_another(self, store: AppendingStore) -> None:
        await store.append([Append("f", 0, (b"ab",), new=True), Append("f", 2, (b"cd",))])
        assert bytes(await store.read("f")) == b"abcd"

    async def test_many_small_buffers_and_large_ones_land_in_order(
        self, store: AppendingStore
    ) -> None:
        buffers = [bytes([number % 251]) * (number % 7) for number in range(5000)]
        buffers[100:100] = [b"L" * (3 << 20), b"", b"M" * (1 << 20)]
        await store.append([Append("big", 0, tuple(buffers))])
        assert bytes(await store.read("big")) == b"".join(buffers)

    async def test_bytes_behind_the_position_are_overwritten(self, store: AppendingStore) -> None:
        await store.append([Append("f", 0, (b"published-and-not",))])
        assert bytes(await store.read("f", ByteRange(0, 9))) == b"published"
        await store.append([Append("f", 9, (b"!",))])
        assert bytes(await store.read("f", ByteRange(0, 10))) == b"published!"

    async def test_missing_published_bytes_are_an_error_and_nothing_is_written(
        self, store: AppendingStore
    ) -> None:
        await store.append([Append("f", 0, (b"abc",))])
        with pytest.raises(OutOfRange) as caught:
            await store.append([Append("f", 4, (b"x",))])
        assert (caught.value.path, caught.value.position) == ("f", 4)
        assert await store.size("f") == 3
        with pytest.raises(NotFound):
            await store.append([Append("absent", 1, (b"x",))])
        with pytest.raises(NotFound):
            await store.size("absent")

    async def test_a_new_object_is_begun_once_and_its_call_may_be_repeated(
        self, store: AppendingStore
    ) -> None:
        await store.create("taken", [b"theirs"])
        with pytest.raises(AlreadyExists) as caught:
            await store.append([Append("taken", 0, (b"x",), new=True)])
        assert caught.value.path == "taken"
        assert bytes(await store.read("taken")) == b"theirs"
        for _ in range(3):
            await store.append([Append("ours", 0, (b"same",), new=True)])
        assert bytes(await store.read("ours")) == b"same"
        await store.delete(["ours"])
        await store.append([Append("ours", 0, (b"anew",), new=True)])
        assert bytes(await store.read("ours")) == b"anew"

    async def test_a_cancelled_append_leaves_the_store_usable(self, store: AppendingStore) -> None:
        await store.append([Append("f", 0, (b"published",))])
        for number in range(5):
            task = asyncio.ensure_future(store.append([Append("f", 9, (b"more",))]))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert bytes(await store.read("f", ByteRange(0, 9))) == b"published"
        await store.append([Append("f", 9, (b"more",))])
        assert bytes(await store.read("f")) == b"publishedmore"

    async def test_a_cancelled_append_does_not_overtake_the_next_one(
        self, store: AppendingStore
    ) -> None:
        for number in range(5):
            task = asyncio.ensure_future(store.append([Append("f", 0, (b"old" * 100_000,))]))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await store.append([Append("f", 0, (b"new" * 100_000,))])
            assert bytes(await store.read("f")) == b"new" * 100_000

    async def test_a_cancelled_delete_does_not_land_behind_the_next_one(
        self, store: AppendingStore
    ) -> None:
        for number in range(5):
            await store.append([Append("f", 0, (b"old",), new=True)])
            task = asyncio.ensure_future(store.delete(["f"]))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await store.delete(["f"])
            await store.append([Append("f", 0, (b"anew",), new=True)])
            assert bytes(await store.read("f")) == b"anew"
            await store.delete(["f"])

    async def test_an_unsafe_name_is_refused_by_append_and_hold(
        self, store: AppendingStore
    ) -> None:
        with pytest.raises(ValueError, match="object name"):
            await store.append([Append("../x", 0, (b"x",))])
        with pytest.raises(ValueError, match="object name"):
            await store.register("../x")

    async def test_who_is_alone_stays_so_and_names_do_not_meet(self, store: AppendingStore) -> None:
        assert await store.register("@lock")
        assert await store.register("@lock")
        assert await store.register("@other")

    async def test_append_and_hold_after_close_say_so(self, store: AppendingStore) -> None:
        await store.close()
        with pytest.raises(Closed):
            await store.append([Append("f", 0, (b"x",))])
        with pytest.raises(Closed):
            await store.register("@lock")


class SharedStoreContract:
    """Tests of two stores over one storage; `store` and `other` are fixtures."""

    @pytest.fixture
    def store(self) -> AppendingStore:
        """A store over an empty storage; override it."""
        raise AssertionError("override the fixture `store`")

    @pytest.fixture
    def other(self, store: AppendingStore) -> AppendingStore:
        """Another store over the same storage; override it."""
        raise AssertionError("override the fixture `other`")

    async def test_each_sees_what_the_other_wrote_and_deleted(
        self, store: AppendingStore, other: AppendingStore
    ) -> None:
        await store.append([Append("f", 0, (b"abc",))])
        assert bytes(await other.read("f", ByteRange(0, 3))) == b"abc"
        await store.append([Append("f", 3, (b"def",))])
        assert bytes(await other.read("f", ByteRange(0, 6))) == b"abcdef"
        with pytest.raises(AlreadyExists):
            await other.create("f", [b"x"])
        await store.delete(["f"])
        with pytest.raises(NotFound):
            await other.read("f", ByteRange(0, 3))
        with pytest.raises(NotFound):
            await other.append([Append("f", 6, (b"x",))])

    async def test_only_one_begins_a_new_object(
        self, store: AppendingStore, other: AppendingStore
    ) -> None:
        await store.append([Append("new", 0, (b"one",), new=True)])
        with pytest.raises(AlreadyExists):
            await other.append([Append("new", 0, (b"two",), new=True)])
        assert bytes(await other.read("new")) == b"one"

    async def test_nobody_is_alone_beside_another_who_asked(
        self, store: AppendingStore, other: AppendingStore
    ) -> None:
        assert await store.register("@lock")
        assert not await other.register("@lock")
        assert not await store.register("@lock")
        assert await store.register("@unrelated")
        await store.close()
        assert await other.register("@lock")

    async def test_who_never_was_alone_is_still_counted(
        self, store: AppendingStore, other: AppendingStore
    ) -> None:
        assert await store.register("@lock")
        assert not await other.register("@lock")
        await other.close()
        assert await store.register("@lock")
