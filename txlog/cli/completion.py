"""`txlog completion`: how does a shell complete the program's commands, options and topics?"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from txlog.cli.options import Session, argument

PROGRAM = "txlog"
VARIABLE = "_TXLOG_COMPLETE"
"""A shell sets it when it asks for completions."""


def completion(
    session: Session, shell: Annotated[Literal["bash", "zsh", "fish"], argument("bash|zsh|fish", "The shell.")]
) -> None:
    """Print a script with which a shell completes commands, options, and the topics of the store.

    bash: add `eval "$(txlog completion bash)"` to ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after compinit. fish:
    `txlog completion fish > ~/.config/fish/completions/txlog.fish`. Topics are those of TXLOG_STORE, or of the --store
    before them on the line.
    """
    # A local import, because only this command and a completing shell need it.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    session.out.line(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Let typer answer a shell that asks for completions."""
    if os.environ.get(VARIABLE):
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
