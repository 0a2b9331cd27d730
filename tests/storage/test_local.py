"""The store in a folder: the contract in each form, other processes, killed processes and failing disks."""

from __future__ import annotations

import errno
import os
import pickle
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lab.testing.store_contract import StoreContract
from tests.storage.processes import start
from txlog.errors import CorruptLogError, MissingObjectError, StorageError, StoreAccessError, UnsupportedStoreError
from txlog.storage import descriptors, local
from txlog.storage.local import TEMPORARY_PREFIX, LocalObjectStore
from txlog.storage.object_store import PutOutcome, make_durable
from txlog.testing.clock import ManualClock


class TestLocalObjectStore(StoreContract):
    def make_store(self, tmp_path: Path) -> LocalObjectStore:
        return LocalObjectStore(str(tmp_path / "root"))


class TestWithoutFsync(StoreContract):
    def make_store(self, tmp_path: Path) -> LocalObjectStore:
        return LocalObjectStore(str(tmp_path / "root"), fsync=False)


class TestWithoutNamelessFiles(StoreContract):
    def make_store(self, tmp_path: Path) -> Any:
        return named(tmp_path / "root")


class TestWithoutProc(StoreContract):
    @pytest.fixture(autouse=True)
    def _no_proc(self, monkeypatch):
        def readlink(path, **options):
            raise FileNotFoundError(path)

        monkeypatch.setattr(os, "readlink", readlink)

    def make_store(self, tmp_path: Path) -> LocalObjectStore:
        return LocalObjectStore(str(tmp_path / "root"), fsync=False)


def named(root):
    store = LocalObjectStore(str(root), fsync=False)
    store._state.nameless = False
    return store


@pytest.fixture(params=["nameless", "named"])
def store(tmp_path, request):
    store = LocalObjectStore(str(tmp_path / "root"))
    store._state.nameless = request.param == "nameless"
    return store


def everything(root):
    """Return every name below `root`, hidden ones too."""
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*") if not path.is_dir())


# -- other processes --------------------------------------------------------------------------------------------------

RACE = """
    import sys
    from txlog.storage.local import LocalObjectStore
    from txlog.storage.object_store import PutOutcome, make_durable
    root, writer, names, fsync = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4] == "True"
    store = LocalObjectStore(root, fsync=fsync)
    body = writer * 20_000
    print("ready", flush=True)
    sys.stdin.readline()
    for name in range(names):
        outcome = store.put_if_absent(f"t/0/{name:020d}.batch", body)
        seen = store.get(f"t/0/{name:020d}.batch")
        whole = len(seen) == 20_000 and len(set(seen)) == 1
        print(name, outcome is PutOutcome.WRITTEN, chr(seen[0]), whole)
"""


@pytest.mark.parametrize("fsync", [True, False])
def test_one_of_eight_processes_wins_each_of_a_hundred_names(tmp_path, fsync):
    writers, names = "abcdefgh", 100
    children = [start(RACE, tmp_path / "root", writer, names, fsync) for writer in writers]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0].split("\n")[:-1] for child in children]
    winners: dict[str, set[str]] = {}
    for writer, lines in zip(writers, answers, strict=True):
        assert len(lines) == names
        for line in lines:
            name, won, seen, whole = line.split()
            assert whole == "True"
            winners.setdefault(name, set()).add(seen)
            assert (won == "True") == (seen == writer)
    assert len(winners) == names
    assert all(len(seen) == 1 for seen in winners.values())
    assert len(everything(tmp_path / "root")) == names


KILLED_IN_A_STREAM = """
    import os, signal, sys
    from txlog.storage.local import LocalObjectStore
    store = LocalObjectStore(sys.argv[1])
    store._state.nameless = sys.argv[2] == "nameless"
    def chunks():
        yield b"some rows" * 10_000
        os.kill(os.getpid(), signal.SIGKILL)
    store.write_file("t/0/rows/a.parquet", chunks())
"""
KILLED_BEFORE_THE_LINK = """
    import os, signal, sys
    from txlog.storage.local import LocalObjectStore
    store = LocalObjectStore(sys.argv[1])
    store._state.nameless = sys.argv[2] == "nameless"
    os.link = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
    store.put_if_absent("t/0/rows/a.parquet", b"data")
"""


@pytest.mark.parametrize("form", ["nameless", "named"])
@pytest.mark.parametrize("script", [KILLED_IN_A_STREAM, KILLED_BEFORE_THE_LINK], ids=["stream", "link"])
def test_a_writer_killed_inside_a_write_leaves_no_name(tmp_path, script, form):
    child = start(script, tmp_path / "root", form)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    store = LocalObjectStore(str(tmp_path / "root"))
    assert store.list("t/0/rows/") == []
    left = everything(tmp_path / "root")
    assert len(left) == (form == "named")
    assert store.put_if_absent("t/0/rows/a.parquet", b"mine") is PutOutcome.WRITTEN


WRITE_FOR_EVER = """
    import itertools, sys
    from txlog.storage.local import LocalObjectStore
    store = LocalObjectStore(sys.argv[1])
    print("ready", flush=True)
    for number in itertools.count():
        store.put_if_absent(f"t/{sys.argv[2]}-{number}", b"%08d" % number * 5_000)
        store.write_file(f"t/f-{sys.argv[2]}-{number}", (b"%08d" % number * 1_000 for _ in range(5)))
"""


def test_writers_killed_at_any_moment_leave_whole_objects(tmp_path):
    moments = random.Random(1)
    for round_number in range(6):
        children = [start(WRITE_FOR_EVER, tmp_path, f"{round_number}-{writer}") for writer in range(2)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.0, 0.1))
        for child in children:
            child.kill()
            child.communicate(timeout=60)
    store = LocalObjectStore(str(tmp_path))
    found = store.list("t/")
    assert found
    for name in found:
        data = store.get(f"t/{name}")
        assert data is not None
        assert len(data) == 40_000
        assert data == data[:8] * 5_000
    # An object that replaces another one has a temporary name for a short time.
    assert all(TEMPORARY_PREFIX in name for name in set(everything(tmp_path)) - {f"t/{name}" for name in found})


# -- durability -------------------------------------------------------------------------------------------------------


@pytest.fixture
def system_calls(monkeypatch):
    """Record fsync, link, rename and mkdir in their order, with the paths."""
    calls = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "rename", "mkdir")}

    def place(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        return "temporary" if "#" in path else os.path.basename(path)

    def fsync(fd):
        calls.append(("fsync", place(fd)))
        real["fsync"](fd)

    def named_call(name, at):
        def call(*arguments, **options):
            calls.append((name, os.path.basename(arguments[at])))
            real[name](*arguments, **options)

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    for name, at in (("link", 1), ("mkdir", 0)):
        monkeypatch.setattr(os, name, named_call(name, at))
    return calls


def test_data_before_the_name_and_the_name_before_the_answer(store, system_calls):
    """A file is durable before a record can name it (W6)."""
    store.put_if_absent("t/0/first", b"1")
    system_calls.clear()
    store.put_if_absent("t/0/a", b"1")
    assert system_calls == [("fsync", "temporary"), ("link", "a"), ("fsync", "0")]
    system_calls.clear()
    store.write_file("t/0/b", [b"1"])
    assert system_calls == [("fsync", "temporary"), ("link", "b"), ("fsync", "0")]
    system_calls.clear()
    assert store.put_if_absent("t/0/a", b"3") is PutOutcome.CONFLICT
    assert system_calls == []


def test_missing_folders_are_made_durable_from_above(store, system_calls):
    store.put_if_absent("t/0/a", b"1")
    assert system_calls[:6] == [
        ("mkdir", "root"),
        ("fsync", Path(store.root).parent.name),
        ("mkdir", "t"),
        ("fsync", "root"),
        ("mkdir", "0"),
        ("fsync", "t"),
    ]
    assert system_calls[6:] == [("fsync", "temporary"), ("link", "a"), ("fsync", "0")]


def test_what_it_knows_of_folders_is_bounded(store, monkeypatch):
    monkeypatch.setattr(local, "_MAX_KNOWN_FOLDERS", 4)
    for number in range(20):
        store.put_if_absent(f"t/staged/{number}/a", b"1")
        assert len(store._state._durable) <= 4
        assert len(store._state._swept) <= 4


def test_a_file_that_another_program_wrote_is_made_durable(store, system_calls):
    os.makedirs(f"{store.root}/t/staged/_partition=0")
    Path(store.root, "t/staged/_partition=0/a").write_bytes(b"rows")
    system_calls.clear()
    make_durable(store, "t/staged/_partition=0/a")
    assert system_calls == [
        ("fsync", "a"),
        ("fsync", "_partition=0"),
        ("fsync", "staged"),
        ("fsync", "t"),
        ("fsync", "root"),
    ]
    with pytest.raises(MissingObjectError):
        make_durable(store, "t/staged/_partition=0/b")
    system_calls.clear()
    make_durable(LocalObjectStore(store.root, fsync=False), "t/staged/_partition=0/a")
    assert system_calls == []


def test_folders_that_others_made_are_made_durable_too(store, system_calls):
    """The processes that made them may not have synced their names yet."""
    os.makedirs(f"{store.root}/t/0")
    system_calls.clear()
    store.put_if_absent("t/0/a", b"1")
    assert sorted(system_calls[:2]) == [("fsync", "root"), ("fsync", "t")]


def test_nothing_is_synced_without_fsync(tmp_path, system_calls):
    store = LocalObjectStore(str(tmp_path / "root"), fsync=False)
    store.put_if_absent("t/a", b"1")
    store.put_if_absent("t/b", b"1")
    store.write_file("t/c", [b"1"])
    assert "fsync" not in {call for call, _ in system_calls}


# -- failing disks ----------------------------------------------------------------------------------------------------


def failing(monkeypatch, name, code, *, after=0):
    """Let os.`name` fail with `code` from its (`after` + 1)-th call on."""
    real, calls = getattr(os, name), []

    def call(*arguments, **options):
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("name", ["fsync", "write"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_a_failure_before_the_name_is_no_write(store, monkeypatch, name, code):
    store.put_if_absent("t/other", b"1")
    with monkeypatch.context() as patch:
        failing(patch, name, code)
        for write in (
            lambda: store.put_if_absent("t/a", b"data"),
            lambda: store.write_file("t/a", [b"data"]),
        ):
            with pytest.raises(StorageError, match=rf"file://.*root: .* 't/a' failed: .*errno {code}"):
                write()
    assert store.list("t/") == everything(f"{store.root}/t") == ["other"]


def test_a_failure_after_the_name_is_unknown(store, monkeypatch):
    store.put_if_absent("t/other", b"1")
    with monkeypatch.context() as patch:
        failing(patch, "fsync", errno.EIO, after=1)
        assert store.put_if_absent("t/a", b"data") is PutOutcome.UNKNOWN
    assert store.get("t/a") == b"data"
    with monkeypatch.context() as patch:
        failing(patch, "fsync", errno.EIO, after=1)
        with pytest.raises(StorageError, match="could not be synced"):
            store.write_file("t/b", [b"data"])


def test_a_link_that_fails_strangely_is_unknown(store, monkeypatch):
    store.put_if_absent("t/other", b"1")
    failing(monkeypatch, "link", errno.EIO)
    assert store.put_if_absent("t/a", b"data") is PutOutcome.UNKNOWN


def test_a_file_system_without_hard_links_is_refused(tmp_path, monkeypatch):
    store = LocalObjectStore(str(tmp_path / "root"))
    failing(monkeypatch, "link", errno.EPERM)
    with pytest.raises(UnsupportedStoreError, match="cannot make hard links"):
        store.put_if_absent("t/a", b"data")
    assert everything(store.root) == []


def test_a_removal_of_the_folder_may_take_a_while(tmp_path, monkeypatch):
    """ext4 refuses new files in a folder from the beginning of its removal on, and its name stays until the end."""
    clock = ManualClock()
    store = LocalObjectStore(str(tmp_path / "root"), clock=clock)
    store.put_if_absent("t/a", b"1")
    began_ms, real = clock.monotonic_ms(), descriptors.open_nameless

    def open_nameless(folder):
        if clock.monotonic_ms() < began_ms + 500:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return real(folder)

    monkeypatch.setattr(local, "open_nameless", open_nameless)
    monkeypatch.setattr(store, "_has_vanished", lambda *_: True)
    assert store.put_if_absent("t/b", b"1") is PutOutcome.WRITTEN


def test_without_nameless_files_there_are_hidden_ones(tmp_path, monkeypatch):
    real = os.open

    def no_nameless(path, flags, *arguments, **options):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", no_nameless)
    store = LocalObjectStore(str(tmp_path / "root"))
    seen = []

    def chunks():
        seen.extend(everything(store.root))
        assert store.list("t/") == []
        yield b"data"

    store.write_file("t/a", chunks())
    assert seen[0].startswith(f"t/{TEMPORARY_PREFIX}")
    assert everything(store.root) == ["t/a"]


def test_a_lost_reply_of_a_link_is_recognised(tmp_path, monkeypatch):
    """A network file system may make the link, lose the answer, and report its own retry as a conflict."""
    store = named(tmp_path / "root")
    real = os.link

    def twice(*arguments, **options):
        real(*arguments, **options)
        real(*arguments, **options)

    monkeypatch.setattr(os, "link", twice)
    assert store.put_if_absent("t/a", b"data") is PutOutcome.WRITTEN


@pytest.mark.parametrize("refused", [IsADirectoryError, PermissionError])  # Linux, macOS
def test_deleting_a_folder_removes_it_only_if_it_is_empty(tmp_path, monkeypatch, refused):
    store = LocalObjectStore(str(tmp_path / "root"))
    store.put_if_absent("t/a/b", b"1")
    (tmp_path / "root" / "t" / "empty" / "deep").mkdir(parents=True)
    real = os.unlink

    def unlink(name, **options):
        if name in ("a", "deep", "empty", "gone"):
            raise FileNotFoundError if name == "gone" else refused
        real(name, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    for path in ("t/a", "t/empty", "t/empty/deep", "t/gone"):
        store.delete(path)
    assert store.list("t/") == ["a/"]
    assert store.get("t/a/b") == b"1"


def test_old_temporary_files_are_swept(tmp_path):
    root = tmp_path / "root"
    LocalObjectStore(str(root)).put_if_absent("t/a", b"1")
    for name, age_s in (("old", 2 * 86_400), ("young", 3_600)):
        file = root / "t" / f"{TEMPORARY_PREFIX}{name}"
        file.write_bytes(b"left")
        os.utime(file, (time.time() - age_s,) * 2)
    store = named(root)
    store.put_if_absent("t/b", b"1")
    assert everything(root) == [f"t/{TEMPORARY_PREFIX}young", "t/a", "t/b"]
    assert store.list("t/") == ["a", "b"]


def test_no_permission(tmp_path, monkeypatch):
    store = LocalObjectStore(str(tmp_path / "root"))
    store.put_if_absent("t/a", b"1")
    failing(monkeypatch, "open", errno.EACCES)
    for call in (
        lambda: store.get("t/a"),
        lambda: store.list("t/"),
        lambda: store.put_if_absent("t/b", b"1"),
        lambda: store.delete("t/a"),
        lambda: store.size("t/a"),
    ):
        # This is a permanent refusal, like HTTP 403: a retry would get the same answer.
        with pytest.raises(StoreAccessError, match="Permission denied"):
            call()


def test_a_location_that_cannot_be_made(tmp_path, monkeypatch):
    store = LocalObjectStore(str(tmp_path / "root"))
    failing(monkeypatch, "mkdir", errno.ENOENT)  # this is the answer of /proc
    with pytest.raises(StoreAccessError, match="cannot be made"):
        store.put_if_absent("a", b"1")


# -- links and other things in the folder -----------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    return outside


def test_links_out_of_the_root_are_not_followed(store, outside):
    store.put_if_absent("t/a", b"1")
    os.symlink(outside / "secret", f"{store.root}/t/file")
    os.symlink(outside, f"{store.root}/t/folder")
    os.symlink("../outside", f"{store.root}/up")
    for call in (
        lambda: store.get("t/file"),
        lambda: store.get_range("t/file", 0, 1),
        lambda: store.size("t/file"),
        lambda: store.modified_ms("t/file"),
        lambda: store.get("t/folder/secret"),
        lambda: store.list("t/folder/"),
        lambda: store.put_if_absent("t/folder/new", b"1"),
        lambda: store.write_file("up/new", [b"1"]),
        lambda: store.delete("up/secret"),
    ):
        with pytest.raises(CorruptLogError, match=r"leads out of the store, to '.*outside"):
            call()
    assert everything(outside) == ["secret"]
    assert store.put_if_absent("t/file", b"1") is PutOutcome.CONFLICT
    store.delete("t/file")
    assert (outside / "secret").read_bytes() == b"secret"


def test_links_inside_the_root_are_followed(store):
    store.put_if_absent("t/a", b"1")
    os.symlink("t", f"{store.root}/u")
    assert store.get("u/a") == b"1"
    assert store.list("") == ["t/", "u/"]


def test_a_sibling_whose_name_begins_alike_is_outside(tmp_path):
    store = LocalObjectStore(str(tmp_path / "root"))
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "a").write_bytes(b"1")
    store.put_if_absent("t", b"1")
    os.symlink("../root-2/a", f"{store.root}/link")
    with pytest.raises(CorruptLogError, match="leads out"):
        store.get("link")


def test_the_root_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    store = LocalObjectStore(str(tmp_path / "link"))
    assert store.put_if_absent("t/a", b"1") is PutOutcome.WRITTEN
    assert store.get("t/a") == b"1"
    assert store.url == f"file://{tmp_path}/real"


def test_things_that_are_no_files(store):
    store.put_if_absent("t/a", b"1")
    os.mkfifo(f"{store.root}/t/fifo")
    os.symlink("nowhere", f"{store.root}/t/dangling")
    with pytest.raises(CorruptLogError, match="neither a file nor a folder"):
        store.get("t/fifo")
    assert store.get("t/dangling") is None
    assert store.put_if_absent("t/dangling", b"1") is PutOutcome.CONFLICT
    with pytest.raises(MissingObjectError):
        store.size("t/dangling")


def test_a_file_where_a_folder_should_be(store):
    store.put_if_absent("t", b"1")
    assert store.get("t/a") is None
    assert store.list("t/") == []
    store.delete("t/a")
    with pytest.raises(StorageError, match="Not a directory"):
        store.put_if_absent("t/a", b"1")


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_a_name_of_a_file_is_used_once(store):
    store.write_file("t/a", [b"1"])
    with pytest.raises(StorageError, match="exists already"):
        store.write_file("t/a", [b"2"])
    assert store.get("t/a") == b"1"


def test_it_can_be_sent_to_another_process(store):
    store.put_if_absent("t/a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("t/a") == b"1"
    assert copy.put_if_absent("t/b", b"1") is PutOutcome.WRITTEN
    assert repr(copy) == repr(store) == f"LocalObjectStore({store.root!r}, fsync=True)"


def test_the_time_of_an_object_is_that_of_its_publication(store, monkeypatch):
    """A writer may stop between the last byte and the link. No process can make an object look older than its name."""
    began_ms = time.time_ns() // 1_000_000 - 100  # the file system's clock ticks a few times a second
    long_ago, link = (0, 1_600_000_000_123_456_789), os.link

    def late(source, target, **options):
        os.utime(source, ns=long_ago, dir_fd=options.get("src_dir_fd"))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", late)
    assert store.put_if_absent("t/a", b"1") is PutOutcome.WRITTEN
    monkeypatch.undo()
    assert os.stat(f"{store.root}/t/a").st_mtime_ns == long_ago[1]
    assert began_ms <= store.modified_ms("t/a") <= time.time_ns() // 1_000_000
    # A copy that keeps times does this, from here or from elsewhere.
    store.put_if_absent("t/b", b"1")
    os.utime(f"{store.root}/t/b", ns=long_ago)
    assert began_ms <= store.modified_ms("t/b")
    os.utime(f"{store.root}/t/b", ns=(0, 4_000_000_000_123_456_789))
    assert store.modified_ms("t/b") == 4_000_000_000_123


def test_no_descriptor_is_left_open(store):
    store.put_if_absent("t/0/a", b"1")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        store.put_if_absent(f"t/{number}/x", b"1")
        store.get(f"t/{number}/x")
        store.get("t/none")
        store.list(f"t/{number}/")
        store.size(f"t/{number}/x")
        store.delete(f"t/{number}/x")
        store.put_if_absent("t/0/a", b"1")
    assert len(os.listdir("/proc/self/fd")) == before
