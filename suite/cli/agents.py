"""Has the command that serves other commands to agents, and says which, and what of them would write."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from suite.cli.count import count
from suite.cli.guard import check
from suite.cli.judge import judge
from suite.cli.look import list_
from suite.cli.recommend import recommend
from suite.cli.shared import MORE, Exit, app, understandable

if TYPE_CHECKING:
    from suite.topics.agents.agent_tool import AgentTool, JsonType, ToolParameter

TYPES: dict[type, JsonType] = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}
FOR_AGENTS = (
    "leantrain says which published ways to train a Transformer faster, in less memory or with less energy really "
    "help, with evidence. Begin with list; count is exact and takes seconds; recommend counts stacks and orders them, "
    "and measures nothing here; judge reads the logs of runs that anyone made; check holds this working tree against a "
    "git revision. Every number says whether it was counted, measured or modelled: hand that on with it."
)


@app.command(rich_help_panel=MORE)
def mcp(
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            help="Have check judge each try of an agent, keep or discard, and write it into this ledger, which the "
            "agent cannot choose. Without it no tool writes.",
        ),
    ] = None,
) -> None:
    """Serve agents over the Model Context Protocol, on standard input and output: list, count, recommend, judge, check.

    Each tool takes the options of its command and answers with its exit code and its JSON. By default none writes a
    file; recommend counts and orders, and measures nothing. They run in this folder, one at a time; check runs the
    code of the revision that it is told. What a count has found is kept in the cache, as ever.
    """
    with understandable():
        from importlib.metadata import version

        from suite.topics.agents.mcp_server import CommandLine, serve, server_of

        program = [sys.executable, "-m", __name__.rpartition(".")[0]]
        meanings = {int(code): code.name.lower().replace("_", " ") for code in Exit}
        line = CommandLine(program, meanings, int(Exit.USAGE), int(Exit.RUN_FAILED))
        server = server_of(tools(ledger), line, version("leantrain"), FOR_AGENTS)
    serve(server)


def tools(ledger: Path | None) -> list[AgentTool]:
    """Returns the tools, none of which writes but check into the ``ledger``, where there is one."""
    tried = [f"--ledger={ledger.resolve()}"] if ledger else []
    return [
        tool_of(list_, "list", (), in_json=False),  # all cards as JSON are a million characters
        tool_of(count, "count", ("keep", "results")),
        tool_of(recommend, "recommend", ("dry_run", "minutes"), ["--dry-run"]),
        tool_of(judge, "judge", ("write",)),
        tool_of(check, "check", ("save", "ledger", "badge", "summary"), tried, writes=bool(tried)),
    ]


def tool_of(
    command: Callable[..., None],
    name: str,
    left_out: Collection[str],
    fixed: Sequence[str] = (),
    *,
    in_json: bool = True,
    writes: bool = False,
) -> AgentTool:
    """Returns a command as a tool with all of its options but those ``left_out``; ``fixed`` ones are always given."""
    from suite.topics.agents.agent_tool import AgentTool

    hints = get_type_hints(command, include_extras=True)
    known: dict[str, ToolParameter] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if hint is not typer.Context and (option := _option(hint, parameter)) not in ("json", *left_out):
            known[option] = _parameter(hint, parameter)
    return AgentTool(name, inspect.getdoc(command) or "", [name, *fixed], known, in_json, writes)


def _flag(hint: Any) -> str:
    """Returns the long name of an option; nothing for what stands by its place."""
    info = get_args(hint)[1]
    declared = (info.default, *(info.param_decls or ()))  # in an Annotated the first name has the place of the default
    return next((name.partition("/")[0] for name in declared if isinstance(name, str) and name.startswith("--")), "")


def _option(hint: Any, parameter: inspect.Parameter) -> str:
    return _flag(hint).removeprefix("--").replace("-", "_") or parameter.name


def _parameter(hint: Any, parameter: inspect.Parameter) -> ToolParameter:
    from suite.topics.agents.agent_tool import ToolParameter

    declared, info = get_args(hint)
    if get_origin(declared) is not list:  # str, or str | None, or list[str] | None
        (declared,) = [each for each in get_args(declared) or (declared,) if each is not NoneType]
    many = get_origin(declared) is list
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    return ToolParameter(
        flag=_flag(hint),
        type=TYPES[get_args(declared)[0] if many else declared],
        description=info.help or "",
        many=many,
        required=required,
        default=str(default) if isinstance(default, Path) else default,
        least=info.min,
    )
