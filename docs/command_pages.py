"""The reference of all commands, from the command line's own definitions."""

from __future__ import annotations

from typing import Any

import typer

from suite.cli import Exit, app
from suite.topics.board.markdown import escape


def page() -> str:
    """All commands, in the order of ``leantrain --help``."""
    group: Any = typer.main.get_command(app)
    with group.make_context("leantrain", [], resilient_parsing=True) as context:
        commands = [group.get_command(context, name) for name in group.list_commands(context)]
        parts = ["# Commands", "Exit codes of every command:", _exits(), *map(_command, commands)]
    return "\n\n".join(parts) + "\n"


def _exits() -> str:
    words = {exit_code.value: exit_code.name.replace("_", " ").lower() for exit_code in Exit}
    return "| code | |\n|---|---|\n" + "\n".join(f"| {code} | {name} |" for code, name in words.items())


def _command(command: Any) -> str:
    arguments = [argument for argument in command.params if argument.param_type_name == "argument"]
    options = [option for option in command.params if option.param_type_name == "option" and not option.hidden]
    usage = " ".join(["leantrain", command.name, *map(_metavar, arguments), "[OPTIONS]"])
    help = "\n\n".join(escape(paragraph) for paragraph in (command.help or "").split("\n\n"))
    lines = [_line(f"`{_metavar(argument)}`", argument) for argument in arguments]
    lines += [
        _line(", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts)), option) for option in options
    ]
    table = "\n".join(["| option | what it says | default |", "|---|---|---|", *lines])
    return f"## {command.name}\n\n{help}\n\n```text\n{usage}\n```\n\n{table}"


def _metavar(argument: Any) -> str:
    return argument.metavar or (argument.name.upper() if argument.required else f"[{argument.name.upper()}]")


def _line(name: str, parameter: Any) -> str:
    default = "" if isinstance(parameter.default, bool | None) or callable(parameter.default) else parameter.default
    return f"| {name} | {escape(parameter.help or '')} | {escape(str(default))} |"
