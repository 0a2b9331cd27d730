"""The program `txlog`: help, shared options, and the real executable."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import txlog
from tests.cli.support import Cli, run
from txlog.cli.options import Settings

HEAVY = ("pyarrow", "numpy", "pandas", "pyspark", "fsspec", "txlog.client", "txlog.storage", "txlog.protocol")
EXECUTABLE = Path(sys.executable).with_name("txlog")


def test_version() -> None:
    assert run("--version").out == f"txlog {txlog.__version__}\n"


def test_help_shows_the_commands_in_groups() -> None:
    text = run("--help").out
    panels = ["Topics and state", "Records", "Maintenance", "Inspect", "More commands"]
    commands = [
        "topics",
        "get-offsets",
        "consumer-groups",
        "transactions",
        "produce",
        "consume",
        "merge",
        "dump-log",
        "demo",
    ]
    shown = re.findall(r"^([A-Z][a-z ]+):$|^  ([a-z-]+)  +\S", text, re.MULTILINE)
    order = [panel or command for panel, command in shown]
    expected = [panels[0], *commands[:4], panels[1], *commands[4:6]]
    for panel, name in zip(panels[2:], commands[6:], strict=True):
        expected += [panel, name]
    assert [name for name in order if name in expected] == expected
    assert "Exit status: 0 done, 2 the call was wrong" in " ".join(text.split())
    assert "<bool>" not in text


@pytest.mark.parametrize("group", ["topics", "transactions", "consumer-groups"])
def test_every_command_has_help(group: str) -> None:
    text = run(group, "--help").out
    assert run(group, status=2).out.rstrip() == text.rstrip()
    commands = re.findall(r"^  ([a-z-]+)  ", text.split("\nCommands:\n")[1], re.MULTILINE)
    assert commands
    for command in commands:
        help_text = run(group, command, "--help").out
        assert "Store and output" in help_text
        assert "<bool>" not in help_text


def test_help_lines_of_groups_name_what_they_can() -> None:
    text = run("--help").out
    for group, words in {
        "topics": ("Create", "list", "describe", "alter", "delete"),
        "consumer-groups": ("List", "describe", "move", "delete"),
        "transactions": ("List", "describe", "hanging", "abort", "expire"),
    }.items():
        line = text.split(f"\n  {group} ")[1].split("\n  get-offsets")[0].split("\n  consumer-groups")[0]
        assert [word for word in words if word not in line] == [], group


def test_paragraphs_of_help_are_wrapped_once() -> None:
    assert (
        "\n  write also ends such a transaction if it writes to the same" in run("transactions", "expire", "--help").out
    )


@pytest.mark.parametrize(
    "command", [["--help"], ["topics", "--help"], ["consume", "--help"], ["--version"], ["nonsense"]]
)
def test_help_does_not_wait_for_heavy_imports(command: list[str]) -> None:
    assert loaded(HEAVY, *command) == []


def test_a_command_loads_only_what_it_needs(seen: Cli) -> None:
    commands = [f"txlog.cli.{name}" for name in ("topics", "merge", "consume", "sql", "groups", "documents")]
    assert loaded(["pydantic", "msgspec._core", *commands], "--version") == ["msgspec._core"]
    assert loaded(commands, "completion", "bash") == []
    store = ["--store", str(seen.root)]
    assert loaded(["pyarrow", "numpy", *commands], "topics", "list", *store) == [
        "txlog.cli.topics",
        "txlog.cli.documents",
    ]
    assert loaded(["pyarrow", "txlog.cli.topics"], "merge", *store) == []


def loaded(names: Sequence[str], *command: str) -> list[str]:
    """Return which of these modules the program loads for a command line."""
    code = (
        "import sys, txlog.cli.main\n"
        f"sys.argv = ['txlog', *{command!r}]\n"
        "try:\n    txlog.cli.main.main()\n"
        "except SystemExit: pass\n"
        f"print('loaded', *[name for name in {tuple(names)!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    word, *found = done.stdout.splitlines()[-1].split()
    assert word == "loaded"
    return found


# -- shared options ----------------------------------------------------------------------------------------------------


def test_shared_options_go_before_between_and_after(seen: Cli, tmp_path: Path) -> None:
    store = ["--store", str(seen.root)]
    expected = run("topics", "list", *store, "-o", "json").out
    assert run(*store, "--output", "json", "topics", "list").out == expected
    assert run("topics", *store, "list", "-o", "json").out == expected
    assert run("--store", str(tmp_path), "topics", *store, "--output", "json", "list").out == expected
    assert run("--store", str(tmp_path), "-o", "text", "topics", "list", *store, "-o", "json").out == expected


def test_the_environment_stands_below_the_options(seen: Cli, tmp_path: Path) -> None:
    env: dict[str, str | None] = {"TXLOG_STORE": str(seen.root)}
    assert "orders" in run("topics", "list", env=env).out
    assert "empty or missing" in run("--store", str(tmp_path), "topics", "list", env=env, status=2).err
    config = tmp_path / "wrong.toml"
    config.write_text("[nonsense]\n")
    done = run("topics", "list", env={**env, "TXLOG_CONFIG": str(config)}, status=2)
    assert "unknown configuration table [nonsense]" in done.err


def test_a_storage_option_may_be_a_bool_or_an_object() -> None:
    given = ['client_kwargs={"region_name": "eu-west-1"}', "anon=false", "secret={no JSON"]
    expected = {"client_kwargs": {"region_name": "eu-west-1"}, "anon": False, "secret": "{no JSON"}
    assert Settings().overlaid(None, None, given, None).storage_options == expected


def test_storage_options_add_up(tmp_path: Path) -> None:
    done = run(
        "--storage-option",
        "fsync=false",
        "topics",
        "--storage-option",
        "fsnyc=1",
        "list",
        "--store",
        str(tmp_path),
        status=2,
    )
    assert "storage option 'fsnyc' is unknown: a local store has fsync. Did you mean 'fsync'?" in done.err
    assert (
        "'fsync' must be true or false"
        in run("topics", "list", "--storage-option", "fsync=maybe", "--store", str(tmp_path), status=2).err
    )


def test_the_demo_is_in_the_repository(tmp_path: Path) -> None:
    said = "the demo is not in the package; run `make demo` in a clone of txlog's repository"
    assert run("demo", status=2).err == f"Error: {said}\n"
    assert json.loads(run("--store", str(tmp_path), "demo", "--output", "json", status=2).err)["message"] == said
    assert [*tmp_path.iterdir()] == []


# -- the executable ----------------------------------------------------------------------------------------------------


def executable(*args: str, stdin: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(EXECUTABLE), *args], input=stdin, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done
    return done


def test_the_real_program(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store"), "--storage-option", "fsync=false"]
    assert executable(*store, "topics", "create", "orders").stdout == "Created topic 'orders' with 1 partition.\n"
    rows = "".join(f'{{"key": "k", "value": "row {number}"}}\n' for number in range(3))
    done = executable("produce", "orders", "--transactional-id", "loader", *store, stdin=rows)
    assert done.stdout.endswith("Wrote 3 rows to 'orders', committed as one transaction of 'loader'.\n")
    printed = executable("consume", "orders", "--from-beginning", "--max-messages", "3", *store).stdout
    assert [line.count('"value":"row ') for line in printed.splitlines()] == [1, 1, 1]
    table = executable("topics", "list", *store).stdout
    assert "\x1b" not in table
    assert [line.split()[0] for line in table.splitlines()] == ["TOPIC", "orders"]
    failed = executable("topics", "describe", "order", *store, status=2)
    assert (failed.stdout, failed.stderr) == ("", "Error: topic 'order' does not exist. Did you mean 'orders'?\n")


def test_a_reader_that_has_enough_is_no_error(cli: Cli) -> None:
    cli("topics", "create", "orders")
    cli("produce", "orders", stdin="".join(f'{{"value": "{number:0>200}"}}\n' for number in range(5000)))
    consume = f"{EXECUTABLE} consume orders --from-beginning --store {cli.root} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", consume], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    row, status = done.stdout.splitlines()
    assert row.startswith('{"key":null,"value":"000')
    assert status == "141"


def test_ctrl_c_while_it_loads_is_no_traceback() -> None:
    """The signal comes when the program imports its heavy part."""
    code = (
        "import os, signal, sys\n"
        "class Strike:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'txlog.cli.program': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Strike())\n"
        "from txlog.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_ends_a_consumer_in_peace(seen: Cli) -> None:
    consume = [str(EXECUTABLE), "consume", "orders", "--from-beginning", "--store", str(seen.root)]
    with subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith('{"id":')
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
