"""Does an adapter keep the port's promises? One class of tests that runs for each adapter.

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path): return MyStore(…)

pytest collects the `test_…` methods of the subclass. `make_store` returns a new, empty store each time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from txlog.errors import InvalidRequestError, MissingObjectError
from txlog.storage.object_store import ObjectStore, PutOutcome, delete_all

BAD_PATHS = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b", "a/../../etc/passwd", "a\0b", "a\nb",
    "a\\b", "%2e%2e/a", "a b", "ä", ".#hidden", "a/.#hidden", "x" * 256, "/".join(["x" * 200] * 6), "a?b", "a*", "a:b",
)  # fmt: skip


class StoreContract:
    """What every ObjectStore must do."""

    listed = 2_345
    """Number of names in a folder that must be listed completely: more than two pages of the store's listing."""

    def make_store(self, tmp_path: Path) -> ObjectStore:
        """Return a new, empty store."""
        raise NotImplementedError

    # -- create -------------------------------------------------------------------------------------------------------

    def test_creates_once(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.put_if_absent("t/0/a.batch", b"first") is PutOutcome.WRITTEN
        assert store.put_if_absent("t/0/a.batch", b"second") is PutOutcome.CONFLICT
        assert store.get("t/0/a.batch") == b"first"

    def test_an_equal_object_is_a_conflict_too(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.put_if_absent("a", b"same") is PutOutcome.WRITTEN
        assert store.put_if_absent("a", b"same") is PutOutcome.CONFLICT

    def test_empty_data_does_not_replace(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.put_if_absent("a", b"first") is PutOutcome.WRITTEN
        assert store.put_if_absent("a", b"") is PutOutcome.CONFLICT
        assert store.get("a") == b"first"

    def test_an_empty_object_is_an_object(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.put_if_absent("a", b"") is PutOutcome.WRITTEN
        assert store.put_if_absent("a", b"x") is PutOutcome.CONFLICT
        assert store.get("a") == b""
        assert store.size("a") == 0
        assert store.list("") == ["a"]

    def test_a_deleted_name_can_be_created_again(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("t/a", b"1")
        store.delete("t/a")
        assert store.get("t/a") is None
        assert store.put_if_absent("t/a", b"2") is PutOutcome.WRITTEN
        assert store.get("t/a") == b"2"

    def test_one_of_many_threads_wins(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        threads, names = 8, 40
        start = threading.Barrier(threads)

        def race(writer: int) -> list[PutOutcome]:
            start.wait()
            return [store.put_if_absent(f"race/{name:03d}", b"%d" % writer) for name in range(names)]

        with ThreadPoolExecutor(threads) as pool:
            outcomes = list(pool.map(race, range(threads)))
        for name in range(names):
            winners = [writer for writer in range(threads) if outcomes[writer][name] is PutOutcome.WRITTEN]
            assert len(winners) == 1, f"name {name} has winners {winners}"
            assert store.get(f"race/{name:03d}") == b"%d" % winners[0]

    def test_no_reader_sees_a_part(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        body = bytes(range(256)) * 800
        done = threading.Event()
        seen: list[int] = []

        def read() -> None:
            while not done.is_set():
                for name in store.list("t/"):
                    data = store.get(f"t/{name}")
                    if data is not None and data != body:
                        seen.append(len(data))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(40):
                assert store.put_if_absent(f"t/{number}", body) is PutOutcome.WRITTEN
                assert store.write_file(f"t/f{number}", [body[:1000], body[1000:]]) == len(body)
        finally:
            done.set()
            reader.join()
        assert seen == []

    # -- read ---------------------------------------------------------------------------------------------------------

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.get("a") is None
        assert store.get("t/0/a") is None
        for call in _questions(store, "t/a"):
            assert isinstance(_raised(call), MissingObjectError)
            assert "t/a" in str(_raised(call))

    def test_a_folder_is_no_object(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("t/0/a", b"1")
        assert store.get("t/0") is None
        assert store.get("t/0/a/b") is None
        assert isinstance(_raised(lambda: store.size("t/0")), MissingObjectError)
        store.delete("t/0")
        assert store.get("t/0/a") == b"1"

    def test_ranges(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("a", b"0123456789")
        assert store.get_range("a", 0, 10) == b"0123456789"
        assert store.get_range("a", 2, 5) == b"234"
        assert store.get_range("a", 8, 99) == b"89"
        assert store.get_range("a", 10, 20) == b""
        assert store.get_range("a", 50, 60) == b""
        assert store.get_range("a", 3, 3) == b""
        assert store.size("a") == 10
        for start, end in ((-1, 3), (5, 4)):
            assert isinstance(_raised(functools.partial(store.get_range, "a", start, end)), InvalidRequestError)

    def test_the_store_tells_the_time(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("a", b"1")
        modified = store.modified_ms("a")
        assert modified is None or modified > 1_500_000_000_000

    # -- stream, delete -----------------------------------------------------------------------------------------------

    def test_files_are_streamed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        chunks = [b"a" * 70_000, b"", b"b" * 70_000, b"c"]
        assert store.write_file("t/0/rows/1-0-ab.parquet", iter(chunks)) == 140_001
        assert store.get("t/0/rows/1-0-ab.parquet") == b"".join(chunks)
        assert store.write_file("t/0/rows/empty.parquet", []) == 0
        assert store.get("t/0/rows/empty.parquet") == b""

    def test_a_failed_stream_leaves_nothing(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("t/x", b"1")

        def chunks() -> Iterator[bytes]:
            yield b"some"
            raise _Broken

        assert isinstance(_raised(lambda: store.write_file("t/a", chunks())), _Broken)
        assert store.get("t/a") is None
        assert store.list("t/") == ["x"]

    def test_delete_is_idempotent(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.delete("t/never")
        store.put_if_absent("t/a", b"1")
        store.delete("t/a")
        store.delete("t/a")
        assert store.get("t/a") is None

    def test_many_are_deleted_together_also_if_some_are_missing(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for name in "abcd":
            store.put_if_absent(f"t/{name}", b"1")
        delete_all(store, ["t/a", "t/never", "t/c"])
        delete_all(store, ["t/a"])
        assert store.list("t/") == ["b", "d"]

    # -- list ---------------------------------------------------------------------------------------------------------

    def test_lists_are_sorted_and_one_folder_deep(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        paths = (
            "b",
            "a",
            "B",
            "10",
            "9",
            "t/0/x",
            "t/1/rows/y",
            "t/10/z",
            "t/topic.1.json",
            "t-2/0/x",
            "_u/x",
            ".dot/x",
            "t.1/x",
        )
        for path in paths:
            store.put_if_absent(path, b"1")
        assert store.list("") == [".dot/", "10", "9", "B", "_u/", "a", "b", "t-2/", "t.1/", "t/"]
        assert store.list("t/") == ["0/", "1/", "10/", "topic.1.json"]
        assert store.list("t/1/") == ["rows/"]
        assert store.list("t/1/rows/") == ["y"]

    def test_a_missing_folder_is_empty(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.list("") == []
        assert store.list("t/") == []
        store.put_if_absent("t/a", b"1")
        assert store.list("t/a/") == []
        assert store.list("t/a/b/") == []
        assert store.list("u/") == []

    def test_lists_begin_after_a_name(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for number in range(30):
            store.put_if_absent(f"t/{number:020d}.batch", b"1")
        store.put_if_absent("t/rows/a", b"1")
        names = store.list("t/")
        assert len(names) == 31
        for position, name in enumerate(names):
            assert store.list("t/", name) == names[position + 1 :]
        assert store.list("t/", "00000000000000000010") == names[10:]
        assert store.list("t/", "zzz") == []
        assert store.list("t/", "rows") == ["rows/"]

    def test_a_list_shows_every_write_before_it(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for number in range(20):
            assert f"{number:03d}" not in store.list("t/")
            store.put_if_absent(f"t/{number:03d}", b"1")
            assert store.list("t/") == [f"{name:03d}" for name in range(number + 1)]
        store.delete("t/007")
        assert "007" not in store.list("t/")

    def test_a_list_goes_over_pages(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        names = [f"{number:05d}" for number in range(self.listed)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put_if_absent(f"many/{name}", b""), names))
        assert store.list("many/") == names
        middle = self.listed // 2
        assert store.list("many/", names[middle]) == names[middle + 1 :]

    def test_an_emptied_folder_is_gone(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("t/staged/1/a", b"1")
        store.put_if_absent("t/b", b"1")
        store.delete("t/staged/1/a")
        assert store.list("t/") == ["b"]
        assert store.put_if_absent("t/staged/1/a", b"2") is PutOutcome.WRITTEN
        assert store.list("t/") == ["b", "staged/"]
        store.delete("t/staged/1/a")
        store.delete("t/b")
        assert store.list("") == []

    def test_folders_come_and_go_under_writers(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)

        def write_and_delete(writer: int) -> None:
            for number in range(40):
                path = f"t/deep/er/{writer}-{number}"
                assert store.put_if_absent(path, b"1") is PutOutcome.WRITTEN
                assert store.get(path) == b"1"
                store.delete(path)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(write_and_delete, range(6)))
        assert store.list("") == []

    # -- names --------------------------------------------------------------------------------------------------------

    def test_bad_paths_are_refused(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for path in BAD_PATHS:
            calls: tuple[Callable[[], object], ...] = (
                functools.partial(store.get, path),
                functools.partial(store.put_if_absent, path, b"x"),
                functools.partial(store.write_file, path, [b"x"]),
                functools.partial(store.delete, path),
                *_questions(store, path),
            )
            for call in calls:
                assert isinstance(_raised(call), InvalidRequestError), path
        for folder in ("t", "/", "../", "t//", "t/../", "./"):
            assert isinstance(_raised(functools.partial(store.list, folder)), InvalidRequestError), folder
        assert store.list("") == []

    def test_the_names_of_the_format_are_accepted(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for path in (
            "txlog.json",
            "My.Topic_1-x/0/00000000000000000000-00000000000000004096-0-9f3a.parquet",
            "t/staged/7-3-9ab2/_partition=0/part-00000-3f0c-c000.zstd.parquet",
            "x" * 249 + "/0/" + "y" * 255,
        ):
            assert store.put_if_absent(path, b"1") is PutOutcome.WRITTEN
            assert store.get(path) == b"1"

    def test_the_url_names_the_store(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert "://" in store.url
        assert not store.url.endswith("/")


class _Broken(Exception):  # noqa: N818 - not an error of ours
    pass


def _questions(store: ObjectStore, path: str) -> tuple[Callable[[], object], ...]:
    return (lambda: store.get_range(path, 0, 1), lambda: store.size(path), lambda: store.modified_ms(path))


def _raised(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
