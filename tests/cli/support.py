"""How do tests run a command line? In this process, on their own store, with checks of all output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from typer.testing import CliRunner

from txlog.cli.program import app

FAST = {"fsync": "false"}
"""No test cuts the power, so files need not be durable."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[str]:
        """Return the lines of the output, with <time> in place of every timestamp."""
        return _TIME.sub("<time>", self.out).splitlines()

    @property
    def rows(self) -> list[Any]:
        """Return the lines of JSON."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Cli:
    """Command lines on one store."""

    root: Path

    def __call__(
        self, *args: str | int | Path, stdin: str = "", status: int | None = 0, store: str | None = None
    ) -> Done:
        """Run `txlog ARGS`, and check its exit status, unless `status` is None."""
        line = [*map(str, args), "--store", store or str(self.root)]
        if (store or "/").startswith("/"):
            line += ["--storage-option", "fsync=false"]
        return run(*line, stdin=stdin, status=status)

    def fails(self, *args: str | int | Path, status: int = 2, stdin: str = "", store: str | None = None) -> str:
        """Return the error text of a command that must fail, without a traceback and without standard output."""
        done = self(*args, stdin=stdin, status=status, store=store)
        assert "Traceback" not in done.err
        assert done.out == ""
        return done.err.removeprefix("Error: ").rstrip("\n")


def run(
    *args: str,
    stdin: str = "",
    status: int | None = 0,
    env: dict[str, str | None] | None = None,
    program: typer.Typer = app,
) -> Done:
    """Run `txlog ARGS` as given, or another program."""
    result = CliRunner().invoke(program, list(args), input=stdin, env=env, prog_name="txlog")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    done = Done(status=result.exit_code, out=result.stdout, err=result.stderr)
    assert status is None or done.status == status, done
    return done
