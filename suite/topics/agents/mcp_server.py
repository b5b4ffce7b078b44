"""Serves commands to agents over the Model Context Protocol, by its official SDK, on standard input and output.

A call runs the command in a process of its own and answers with its exit code, what that means, and the JSON that it
printed. One runs at a time: what is timed must not be disturbed by what another call counts. A call that the client
gives up ends its command as Ctrl-C does.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suite.record.text import printable
from suite.topics.agents.agent_tool import AgentTool

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult

MOST_CHARACTERS = 200_000
"""The longest answer that is handed on; a longer one is refused with what to ask instead."""
LEAVE_S = 20.0  # that a command has to put away what it began
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "exit_code": {"type": "integer", "description": "Of the command."},
        "meaning": {"type": "string", "description": "What the exit code says."},
        "answer": {"description": "What the command printed: a JSON value, or text."},
        "said": {"type": "string", "description": "Warnings of the command, or why there is no answer."},
    },
    "required": ["exit_code", "meaning", "answer", "said"],
}
"""The schema of every tool's answer."""


@dataclass(frozen=True)
class CommandLine:
    """Says how a command is started, and what its exit codes mean.

    Attributes:
        program: the words before those of the command.
        usage: the exit code of a call that is refused; failed: of one that broke.
    """

    program: Sequence[str]
    meanings: Mapping[int, str]
    usage: int
    failed: int


def server_of(tools: Sequence[AgentTool], line: CommandLine, version: str, instructions: str) -> Server[Any]:
    """Builds the server of these tools. Raises ValueError, with the way out, where the SDK is missing."""
    try:
        import anyio
        import mcp_types as types
        from jsonschema import Draft202012Validator
        from mcp.server.lowlevel import Server
    except ImportError:
        raise ValueError("leantrain mcp needs the protocol's SDK: pip install 'leantrain[mcp]'") from None
    by_name = {tool.name: tool for tool in tools}
    alone = anyio.Lock()

    async def listed(context: Any, request: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools])

    async def called(context: Any, request: types.CallToolRequestParams) -> CallToolResult:
        tool, values = by_name.get(request.name), request.arguments or {}
        if tool is None:
            return _answered(line, line.usage, None, f"there is no tool {request.name}: {', '.join(by_name)}")
        if wrong := next(Draft202012Validator(tool.schema).iter_errors(values), None):
            place = "".join(f"{part}: " for part in wrong.absolute_path)
            return _answered(line, line.usage, None, f"{tool.name} was not run: {place}{wrong.message}")
        async with alone:
            code, printed, said = await _ran([*line.program, *tool.words(values)])
        return _answered(line, code, *_read(tool, printed, said))

    return Server("leantrain", version=version, instructions=instructions, on_list_tools=listed, on_call_tool=called)


def serve(server: Server[Any]) -> None:
    """Serves on standard input and output until the client leaves."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def served() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(served)


def _described(tool: AgentTool) -> Any:
    import mcp_types as types

    hints = types.ToolAnnotations(
        read_only_hint=not tool.writes, destructive_hint=False, idempotent_hint=not tool.writes, open_world_hint=False
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        output_schema=ANSWER,
        annotations=hints,
    )


async def _ran(words: Sequence[str]) -> tuple[int, str, str]:
    """Runs a command; returns its exit code, what it printed, and what it said beside that.

    It has no standard input, which is the protocol's. Where the call is given up, it is asked to end, and then made to.
    """
    import anyio

    heard = {"stdout": b"", "stderr": b""}
    process = await anyio.open_process(words, stdin=subprocess.DEVNULL, start_new_session=True)

    async def read(name: str) -> None:
        async for part in getattr(process, name):
            heard[name] += part

    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(read, "stdout")
            readers.start_soon(read, "stderr")
        await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                with anyio.move_on_after(LEAVE_S):
                    await process.wait()
            await process.aclose()  # kills what is left
    assert process.returncode is not None
    return process.returncode, heard["stdout"].decode("utf-8", "replace"), heard["stderr"].decode("utf-8", "replace")


def _read(tool: AgentTool, printed: str, said: str) -> tuple[Any, str]:
    """Returns the answer in what a command printed, None where there is none, and what is said with it."""
    if len(printed) > MOST_CHARACTERS:
        return None, f"the answer has {len(printed)} characters, {MOST_CHARACTERS} at most are handed on: ask for less"
    if not tool.in_json:
        return printed or None, said
    try:
        return json.loads(printed), said
    except ValueError:
        return None, said or "the command printed no JSON"


def _answered(line: CommandLine, code: int, answer: Any, said: str) -> CallToolResult:
    """Returns the result of a call; an error where there is no answer but why."""
    import mcp_types as types

    refused = isinstance(answer, dict) and answer.keys() == {"error", "exit_code"}
    known = {
        "exit_code": code,
        "meaning": line.meanings.get(code, "ended by a signal" if code < 0 else "unknown"),
        "answer": None if refused else answer,
        "said": "\n".join(map(printable, (answer["error"] if refused else said).strip().splitlines())),
    }
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=json.dumps(known))],
        structured_content=known,
        is_error=known["answer"] is None,
    )
