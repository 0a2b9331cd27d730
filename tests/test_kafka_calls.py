"""Has docs/kafka-calls.md every call of Kafka's Python clients? Do the calls beside them exist, and its programs run?

The five programs are ports of those that confluent-kafka-python has in its folder `examples`.
"""

from __future__ import annotations

import io
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

import txlog
import txlog.metrics
from conf import kafka_calls
from tests.test_docs import PAGES, Program
from tests.test_tutorials import blocks, here
from txlog.config.kafka_calls import in_place_of

PAGE = "docs/kafka-calls.md"
# confluent-kafka-python 2, then kafka-python 3.
CALLS = {
    "Producer": (
        "abort_transaction begin_transaction commit_transaction flush init_transactions len list_topics poll produce "
        "produce_batch purge send_offsets_to_transaction "
        "abort_transaction begin_transaction close commit_transaction flush init_transactions partitions_for send "
        "send_offsets_to_transaction"
    ),
    "Consumer": (
        "assign assignment close commit committed consume consumer_group_metadata get_watermark_offsets "
        "incremental_assign incremental_unassign list_topics memberid offsets_for_times pause poll position resume "
        "seek store_offsets subscribe unassign unsubscribe "
        "assign assignment beginning_offsets close commit commit_async committed end_offsets group_metadata highwater "
        "offsets_for_times partitions_for_topic pause paused poll position resume seek seek_to_beginning seek_to_end "
        "subscribe subscription topics unsubscribe"
    ),
    "AdminClient": (
        "alter_configs alter_consumer_group_offsets alter_user_scram_credentials create_acls create_partitions "
        "create_topics delete_acls delete_consumer_groups delete_records delete_topics describe_acls describe_cluster "
        "describe_configs describe_consumer_groups describe_topics describe_user_scram_credentials elect_leaders "
        "incremental_alter_configs list_consumer_group_offsets list_consumer_groups list_groups list_offsets "
        "list_topics poll "
        "abort_transaction alter_configs alter_group_offsets alter_partition_reassignments alter_replica_log_dirs "
        "alter_user_scram_credentials api_versions close create_acls create_partitions create_topics delete_acls "
        "delete_group_offsets delete_groups delete_records delete_topics describe_acls describe_cluster "
        "describe_configs describe_features describe_groups describe_log_dirs describe_metadata_quorum "
        "describe_producers describe_topic_partitions describe_topics describe_transactions "
        "describe_user_scram_credentials elect_leaders find_hanging_transactions get_broker_version_data "
        "list_config_resources list_group_offsets list_groups list_partition_offsets list_partition_reassignments "
        "list_topics list_transactions remove_group_members reset_configs reset_group_offsets update_features "
        "wait_for_topics"
    ),
    "All clients": (
        "set_sasl_credentials version libversion bootstrap bootstrap_connected max_usable_produce_magic metrics"
    ),
}
TYPES: dict[str, type] = {
    "store": txlog.Store,
    "producer": txlog.Producer,
    "consumer": txlog.Consumer,
    "admin": txlog.Admin,
}


def section(title: str) -> str:
    return PAGES[PAGE].partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def ours(title: str) -> str:
    """Return the last cells of a section's rows: what txlog has."""
    rows = [line for line in section(title).splitlines() if line.startswith("| ")]
    return "\n".join(row.rstrip(" |").rpartition(" | ")[2] for row in rows)


@pytest.mark.parametrize("title", CALLS)
def test_the_tables_have_every_call(title: str) -> None:
    lacking = {name for name in CALLS[title].split() if not re.search(rf"`{name}[(`]", section(title))}
    assert not lacking


def test_the_calls_beside_them_exist() -> None:
    text = "\n".join(ours(title) for title in (*CALLS, "Errors"))
    calls = set(re.findall(r"\b(store|producer|consumer|admin)\.([a-z]\w*)", text))
    assert len(calls) > 50
    assert not {(kind, name) for kind, name in calls if not hasattr(TYPES[kind], name)}
    named = {*re.findall(r"\btxlog\.(\w+)", text), *re.findall(r"`(\w+Error)`", text)}
    assert {"open", "TopicPartition", "CommitFailedError"} <= named
    assert not {name for name in named if not hasattr(txlog, name)}


def test_the_table_of_messages_is_what_the_script_writes() -> None:
    """A missing call or a wrong argument of a client is answered with its row of the page."""
    assert kafka_calls.TARGET.read_text(encoding="utf-8") == kafka_calls.text(), "run `python conf/kafka_calls.py`"
    for title, kind in (("Producer", "producer"), ("Consumer", "consumer"), ("AdminClient", "admin")):
        for name in CALLS[title].split():
            if not hasattr(TYPES[kind], name):
                assert in_place_of(f"{TYPES[kind].__name__}.{name}").startswith(". hint: "), name


def called(program: Program, command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a program prints if a shell starts it with a command of the page. It runs in this process."""
    given, _, line = command.rpartition("| ")
    monkeypatch.setattr(sys, "stdin", io.StringIO(shlex.split(given)[1].replace(r"\n", "\n") if given else ""))
    monkeypatch.setattr(sys, "argv", shlex.split(line)[1:])
    return here(program)


def interrupted(command: str, is_enough: Callable[[str], bool]) -> str:
    """Return what a program prints until Ctrl-C, which comes when it has printed enough, and after that."""
    started = [sys.executable, "-u", *shlex.split(command)[1:]]
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as running:
        late = threading.Timer(60, running.kill)
        late.start()
        try:
            assert running.stdout is not None
            printed = ""
            while not is_enough(printed) and (line := running.stdout.readline()):
                printed += line
            time.sleep(1)  # the next poll has begun, so the printed rows count as done
            running.send_signal(signal.SIGINT)
            printed += running.stdout.read()
            assert running.wait() == 0, printed
        finally:
            late.cancel()
    return printed


def test_ported_programs_of_confluent_print_what_stands_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = re.findall(r"^### (\w+\.py)$", PAGES[PAGE], re.MULTILINE)
    found = blocks(PAGE)
    programs, commands = dict(zip(names, found[::2], strict=True)), dict(zip(names, found[1::2], strict=True))
    assert names == [
        "producer.py",
        "consumer.py",
        "eos_transactions.py",
        "get_watermark_offsets.py",
        "asyncio_example.py",
    ]
    for name, program in programs.items():
        Path(name).write_text(program.code)

    def prints(name: str, command: str = "") -> str:
        return called(programs[name], command or commands[name].code, monkeypatch)

    assert prints("producer.py") == commands["producer.py"].printed

    # Its metrics are the only lines that the page does not show.
    command = commands["consumer.py"].code.replace("consumer.py", "consumer.py -T 100")
    printed = interrupted(command, lambda text: "txlog_consumed_rows_total{" in text and text.endswith("\n\n"))
    lines = [
        line for line in printed.splitlines() if line and not line.startswith(("#", "txlog_", "python_", "process_"))
    ]
    assert lines == commands["consumer.py"].printed.splitlines()

    assert prints("eos_transactions.py") == commands["eos_transactions.py"].printed
    assert prints("eos_transactions.py") == "end of the partition\n"
    with txlog.open("my-log") as store:
        encoded = store.table("encoded").to_arrow()
        assert encoded["value"].to_pylist() == [b64encode(line) for line in (b"one", b"two", b"three")]
        assert encoded["key"].to_pylist() == [None] * 3

    assert prints("get_watermark_offsets.py") == commands["get_watermark_offsets.py"].printed
    assert prints("get_watermark_offsets.py", "python get_watermark_offsets.py my-log nobody lines").split()[-2:] == [
        "-",
        "3",
    ]

    printed = interrupted(commands["asyncio_example.py"].code, lambda text: "position:" in text)
    assert "assigned: events-0\n" in printed
    assert "consumed: b'value9'\n" in printed
    assert printed.count("produced to events [0] at offset ") % 10 == 0
    assert "revoked: events-0\n" in printed
    with txlog.open("my-log") as store:
        group = store.admin().describe_group("events_readers")
        assert (group.state, group.members) == ("EMPTY", ())
        assert [(offset.committed or 0) >= 10 for offset in group.offsets] == [True]
        assert not store.admin().find_hanging(-1)
