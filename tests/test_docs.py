"""Are README.md and the pages true?

Their programs run as printed, in order and twice, and print what the page shows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import txlog
from conf.site.markdown import INSTEAD
from tests.cli.support import run as command
from txlog.config import KEYS
from txlog.errors import TopicExistsError
from txlog.maintenance.maintain import STEPS

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
}
TUTORIAL = (
    "README.md",
    "docs/first-program.md",
    "docs/streams.md",
    "docs/lost-checkpoint.md",
    "docs/transactions.md",
    "docs/sql.md",
    "docs/maintenance.md",
)
"""Pages with programs, in the order in which a reader runs them in one folder."""
ELSEWHERE = {
    "docs/cli.md",
    "docs/columns.md",
    "docs/engine.md",
    "docs/kafka.md",
    "docs/publish.md",
    "docs/tables.md",
    # tests/page/test_command.py:
    "docs/inspect.md",
    # tests/test_explained.py:
    "docs/costs.md",
    "docs/isolation.md",
    # tests/test_kafka_calls.py:
    "docs/kafka-calls.md",
    # tests/test_deliveries.py:
    "docs/delivery.md",
    # tests/test_analysts.py:
    "docs/corrections.md",
    "docs/daily-job.md",
    "docs/delete-rows.md",
    # tests/test_tutorials.py:
    "docs/first-spark-job.md",
    "docs/groups.md",
    "docs/hanging-transaction.md",
    "docs/move-store.md",
    "docs/object-stores.md",
    "docs/pipeline.md",
    # tests/spark/test_monitoring.py:
    "docs/monitor.md",
    # tests/cluster/test_pages.py:
    "docs/connect.md",
    "docs/pipelines.md",
}
"""Tests below run the programs of cli.md, columns.md and tables.md, tests/kafka/test_page.py the one that needs a Kafka
broker, tests/test_engine.py the one of an engine, tests/engines/test_page.py those of publish.md."""


@dataclass(frozen=True, slots=True)
class Program:
    """A code block that can run, and the output that its page shows below it ("" if none)."""

    page: str
    language: str
    code: str
    printed: str

    @property
    def needs_spark(self) -> bool:
        return "pyspark_txlog" in self.code


def programs(page: str) -> list[Program]:
    """Return the blocks of Python and of `txlog` commands. The other shell blocks prepare the environment."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    found = []
    for (language, code), (next_language, after) in zip(blocks, [*blocks[1:], ("", "")], strict=False):
        if language == "python" or (language == "sh" and all(line.startswith("txlog ") for line in code.splitlines())):
            found.append(Program(page, language, code, after if next_language == "text" else ""))
    return found


PROGRAMS = [program for page in TUTORIAL for program in programs(page)]
PYTHON = [program for program in PROGRAMS if program.language == "python"]
COMMANDS = [program for program in PROGRAMS if program.language == "sh"]
BY_HEART = [program for program in PYTHON if not program.needs_spark]

NEXT = "-- the next program --"
KERNEL = f"""
import json, sys
for code in json.loads(sys.argv[1]):
    exec(compile(code, "page", "exec"), {{"__name__": "__main__"}})
    print("{NEXT}", flush=True)
"""
"""Run programs like the cells of a notebook, in one process. Spark's programs share one session, as `session()`
promises."""


def run(folder: Path, *command: str) -> str:
    """Return what the program prints. It finds programs of a virtual environment as its user's shell does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(folder: Path, chosen: list[Program]) -> list[str]:
    """Return what each program prints."""
    printed = run(folder, sys.executable, "-c", KERNEL, json.dumps([program.code for program in chosen]))
    return [each.strip() for each in printed.split(NEXT)[: len(chosen)]]


def typed(program: Program) -> str:
    """Return what the commands of a program print, run in this process."""
    return "".join(command(*shlex.split(line)[1:]).out for line in program.code.splitlines())


def read(folder: Path, topic: str, column: str = "order_id") -> list[int]:
    with txlog.open(folder / "my-log") as store, store.consumer(topic, auto_offset_reset="earliest") as consumer:
        return sorted(row[column] for batch in consumer.iterate() for row in batch.to_pylist())


def test_every_page_with_programs_is_run() -> None:
    assert {page for page in PAGES if programs(page)} == {*TUTORIAL, *ELSEWHERE}
    assert (len(PYTHON), len(BY_HEART), len(COMMANDS)) == (10, 4, 6)


def steps_after_a_lost_checkpoint() -> list[Program]:
    """Return the steps of the page, each as a program. The second one prints why a lost checkpoint is refused."""
    query = next(program for program in PYTHON if "german-checkpoint" in program.code)
    # The options that the page names, in place of those of the first start.
    steps = PAGES["docs/lost-checkpoint.md"].partition("## A stream into topics")[2].partition("\n## ")[0]
    options = "".join(f'.option("{name}", "{value}")' for name, value in re.findall(r"`([\w.]+)=([\w-]+)`", steps))
    resumed = query.code.replace('.option("startingOffsets", "earliest")', options)
    assert options in resumed
    lose = 'import shutil\n\nshutil.rmtree("german-checkpoint")\n'
    more = """
import txlog

with txlog.open("my-log") as store, store.producer() as producer:
    producer.send("orders", [{"order_id": 7, "country": "DE", "amount": 1.0}])
"""
    refused = f"try:\n    exec({resumed!r})\nexcept Exception as error:\n    print(error)"
    (forget,) = re.findall(r"^\d\. Run `(txlog .*)`", steps, re.MULTILINE)
    typed = f"import subprocess\n\nsubprocess.run({forget!r}, shell=True, check=True, capture_output=True)\n"
    return [replace(query, code=code) for code in (lose + more, refused, typed + lose, resumed)]


def assert_the_query_goes_on(folder: Path, said: str) -> None:
    # The line that docs/spark.md tells the reader to look for.
    assert re.search(r"^txlog\.errors\.TxnVersionScopeError: .*hint: ", said, re.MULTILINE)
    assert read(folder, "german") == [4, 5, 7]


@pytest.mark.spark
@pytest.mark.slow
def test_programs_print_what_stands_below_them_also_the_second_time(tmp_path: Path) -> None:
    """After them, in the same session, the steps after a lost checkpoint."""
    lost = steps_after_a_lost_checkpoint()
    printed = python(tmp_path, [*PYTHON, *PYTHON, *lost])
    assert printed[: len(PYTHON)] == [program.printed.strip() for program in PYTHON]
    # The group of the client's first program has read every row.
    again = ["" if program is BY_HEART[0] else program.printed.strip() for program in PYTHON]
    assert printed[len(PYTHON) : -len(lost)] == again
    assert read(tmp_path, "sales", "sale_id") == [1, 2]
    assert read(tmp_path, "orders") == [1, 2, 3, 4, 5, 7]
    assert (read(tmp_path, "cheap"), read(tmp_path, "dear")) == ([1], [2, 3])
    assert_the_query_goes_on(tmp_path, printed[1 - len(lost)])


@pytest.mark.spark
@pytest.mark.exhaustive
def test_each_step_after_a_lost_checkpoint_may_be_a_process_of_its_own(tmp_path: Path) -> None:
    python(tmp_path, [BY_HEART[0], next(program for program in PYTHON if "german-checkpoint" in program.code)])
    said = [python(tmp_path, [step])[0] for step in steps_after_a_lost_checkpoint()]
    assert_the_query_goes_on(tmp_path, said[1])


def test_programs_of_the_client_may_be_run_again(tmp_path: Path) -> None:
    """After a kill anywhere, or when a program runs twice, the second run succeeds, prints nothing, and doubles no
    row."""
    first, *others = BY_HEART
    printed = python(tmp_path, [first, first, *(program for program in others for _ in range(2)), first])
    assert printed == [first.printed.strip(), *[""] * (2 * len(others) + 2)]
    assert (read(tmp_path, "orders"), read(tmp_path, "large")) == ([1, 2, 3, 4, 5], [1, 3, 4, 5])
    with txlog.open(tmp_path / "my-log") as store:
        (group,) = [group for group in store.admin().list_groups() if group.group == "filter"]
        assert [offset.committed for offset in group.offsets] == [4, 1]
        # The output of the later program for Spark SQL.
        described = store.admin().describe_transaction("loader")
        assert (described.txn_version, described.last_outcome) == (1, "commit")


def test_programs_over_tables_print_what_stands_below_them_also_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [program for program in programs("docs/tables.md") if program.language == "python"]
    (queries,) = (program for program in programs("docs/tables.md") if program.language == "sh")
    assert len(shown) == 5
    assert python(tmp_path, [*shown, *shown]) == [program.printed.strip() for program in [*shown, *shown]]
    monkeypatch.chdir(tmp_path)
    assert typed(queries) == queries.printed


def test_the_programs_over_changed_columns_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changing, commands = programs("docs/columns.md")
    assert python(tmp_path, [changing]) == [changing.printed.strip()]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopicExistsError):
        exec(compile(changing.code, changing.page, "exec"), {})
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "another"))
    columns = ["id:int32", "name:string", "price:float32", "note:string"]
    command("topics", "create", "goods", *(each for column in columns for each in ("--column", column)))
    assert "renamed name to title" in typed(commands)
    with txlog.open(tmp_path / "my-log") as store, txlog.open(tmp_path / "another") as other:
        assert store.topic("goods").fields == other.topic("goods").fields


def test_the_commands_show_what_the_programs_wrote_and_may_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(tmp_path, BY_HEART)
    # The first program runs in a shell, the others in this process: Python takes a second to start.
    shown = run(tmp_path, "bash", "-euc", COMMANDS[0].code)
    monkeypatch.chdir(tmp_path)
    rest = [typed(program) for program in COMMANDS[1:]]
    assert re.search(r"^orders +2 +3 ", shown, re.MULTILINE)
    assert '{"order_id":3,"country":null,"amount":7.25}\n' in shown
    assert re.search(r"^loader +COMPLETE_COMMIT ", shown, re.MULTILINE)
    assert "partition     orders-0" in shown
    assert all(rest)
    assert all(typed(program) for program in COMMANDS)
    assert read(tmp_path, "orders") == [1, 2, 3, 4, 5]


def test_a_compaction_leaves_the_rows_that_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, look = (program for program in programs("docs/maintenance.md") if "users" in program.code)
    python(tmp_path, [write])
    monkeypatch.chdir(tmp_path)
    assert typed(look) == look.printed


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGES["docs/cli.md"], re.MULTILINE | re.DOTALL)
    *shown, looks = [code for language, code in blocks if language == "sh"]
    looks = looks.replace("txlog doctor\n", "txlog doctor || true\n")  # a machine of tests may lack Java
    printed = run(tmp_path, "bash", "-euc", f"echo '{NEXT}'\n".join([*shown, looks])).split(f"{NEXT}\n")
    assert printed[:-1] == [text for language, text in blocks if language == "text"]
    assert re.search(
        r"^read +ok +2 topics can be read, metadata only: `txlog fsck` looks for damage$", printed[-1], re.MULTILINE
    )
    assert re.search(r"^orders +1 +0\.0 +4 +0$", printed[-1], re.MULTILINE)
    assert re.search(r"^orders +0 +0 +4 +4$", printed[-1], re.MULTILINE)


def test_the_table_of_defaults_is_the_code_s() -> None:
    table = dict(re.findall(r"^\| `([a-z.]+)` \| `?([^`|]+?)`? \|", PAGES["docs/settings.md"], re.MULTILINE))
    expected = {key.name: key.text(key.default) for key in KEYS.values() if key.kafka_default}
    assert table == expected
    equal = dict(re.findall(r"`([a-z.]+)=([\w.-]+)`[,.]", PAGES["docs/settings.md"]))
    assert equal == {name: KEYS[name].text(KEYS[name].default) for name in equal}
    assert len(equal) > 10
    assert not equal.keys() & table.keys()


def test_the_page_has_the_steps_of_a_round() -> None:
    assert tuple(re.findall(r"^\d+\. `(\w+)`: ", PAGES["docs/maintenance.md"], re.MULTILINE)) == STEPS


def test_readme_is_short() -> None:
    assert len(PAGES["README.md"].encode()) <= 9_000


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    anchors = {
        path: {
            re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-")
            for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        for path, text in {**PAGES, "PROTOCOL.md": (ROOT / "PROTOCOL.md").read_text(encoding="utf-8")}.items()
    }
    for target, anchor in re.findall(r"\]\((?!https://)([^)#:]*)#?([^)]*)\)", PAGES[page]):
        path = ((ROOT / page).parent / target if target else ROOT / page).resolve()
        assert path.exists(), target
        place = path.relative_to(ROOT).as_posix()
        if anchor and place not in INSTEAD:  # tests/test_site.py checks the anchors of generated pages
            assert anchor in anchors[place], f"{target}#{anchor}"
    for folder in re.findall(r"`((?:txlog|spark_ext|conf|tests|benchmarks)/[\w/.]*)`", PAGES[page]):
        assert (ROOT / folder).exists(), folder
