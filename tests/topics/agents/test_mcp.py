"""Agents get by the protocol what the commands say: asked by the SDK's own client."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.cli.agents import FOR_AGENTS, tools
from suite.topics.agents.mcp_server import MOST_CHARACTERS, CommandLine, server_of

mcp = pytest.importorskip("mcp", reason="the protocol's SDK is not installed: pip install 'leantrain[mcp]'")
ROOT = Path(__file__).parents[3]
READ = {"list", "count", "recommend", "judge", "check"}


def asked(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """What a client is answered."""

    async def conversation() -> list[Any]:
        async with mcp.Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(conversation)


def of_leantrain(folder: Path, *options: str) -> Any:
    """The server as a client starts it."""
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PATH": os.environ["PATH"]}
    environment |= {name: os.environ[name] for name in ("HOME", "LEANTRAIN_CACHE") if name in os.environ}
    command = ["-m", "suite.cli", "mcp", *options]
    return mcp.StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=folder)


def losses(path: Path, scale: float) -> None:
    lines = [f"{step},{scale * (2 + 1 / step)}" for step in range(1, 40)]
    path.write_text("\n".join(["step,loss", *lines]))


def test_a_client_lists_judges_and_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    losses(tmp_path / "reference.csv", 1.0)
    losses(tmp_path / "contender.csv", 0.9)
    logs = {"reference": ["reference.csv"], "contender": ["contender.csv"]}
    listed, judged, unknown, flag = asked(
        of_leantrain(tmp_path),
        ("list", {"what": "optimizers"}),
        ("judge", logs),
        ("count", {"technique": ["lionn"]}),
        ("list", {"what": "--bibtex"}),  # no option of the command, whatever it is called
    )
    assert not listed.is_error and "\nlion\toptimizers\t" in listed.structured_content["answer"]
    direct = CliRunner().invoke(
        app, ["judge", "--json"] + [f"--{side}={tmp_path / names[0]}" for side, names in logs.items()]
    )
    assert judged.structured_content["exit_code"] == direct.exit_code == Exit.INCONCLUSIVE  # one run a side
    assert judged.structured_content["meaning"] == "inconclusive" and not judged.is_error
    assert judged.structured_content["answer"].keys() == json.loads(direct.stdout).keys()
    assert json.loads(judged.content[0].text) == judged.structured_content
    assert unknown.is_error and unknown.structured_content["exit_code"] == Exit.USAGE
    assert unknown.structured_content["said"] == "no technique is called 'lionn'; did you mean lion?"
    assert flag.is_error and "no category or technique is called '--bibtex'" in flag.structured_content["said"]


@pytest.mark.slow
def test_what_takes_minutes_comes_back_too(tmp_path: Path) -> None:
    """A count, a recommendation, and a try that the ledger keeps."""
    ledger, small = tmp_path / "tries.jsonl", {"baseline": ["gpt"], "size": "pico"}
    counted, recommended, tried = asked(
        of_leantrain(ROOT, "--ledger", str(ledger)),
        ("count", small | {"technique": ["lion"]}),
        ("recommend", small | {"memory": "1GB", "counts": 2}),
        ("check", small | {"against": "HEAD", "technique": ["baseline"], "minutes": 0.2}),
    )
    (pair,) = counted.structured_content["answer"]
    assert pair["stack"]["stack"] == "lion"
    assert recommended.structured_content["answer"]["provenance"] == "counted, with what records make expected"
    assert tried.structured_content["answer"]["decision"] in ("keep", "discard", "undecided")
    assert [json.loads(line)["is"] for line in map(unsealed, ledger.read_text().splitlines()[1:])] == ["begun", "ended"]


def unsealed(line: str) -> bytes:
    from suite.record.seal import opened

    return opened(line.encode())


# what is offered ------------------------------------------------------------------------------------------------------


def test_every_tool_takes_what_its_command_takes_but_what_writes() -> None:
    offered = {tool.name: tool for tool in tools(None)}
    assert offered.keys() == READ and not any(tool.writes for tool in offered.values())
    assert offered["count"].parameters.keys() >= {"technique", "baseline", "sequence_length", "gpu"}
    withheld = {"keep", "write", "save", "badge", "summary", "ledger", "json", "dry_run"}
    assert not withheld & {name for tool in offered.values() for name in tool.parameters}
    assert offered["recommend"].schema["required"] == ["memory"] and offered["recommend"].command[1:] == ["--dry-run"]
    ranks = offered["count"].schema["properties"]["ranks"]
    assert (ranks["type"], ranks["minimum"]) == ("integer", 2)
    assert offered["judge"].schema["properties"]["loss"]["items"] == {"type": "string"}
    words = offered["check"].words({"against": "HEAD", "technique": ["a", "-b"], "kernels": True, "minutes": 2})
    assert words == ["check", "--json", "--against=HEAD", "--technique=a", "--technique=-b", "--kernels", "--minutes=2"]
    assert offered["list"].words({"what": "-x", "bibtex": False}) == ["list", "--", "-x"]


def test_a_ledger_is_chosen_by_who_starts_the_server(tmp_path: Path) -> None:
    (check,) = [tool for tool in tools(tmp_path / "tries.jsonl") if tool.writes]
    assert check.name == "check" and "ledger" not in check.parameters
    assert check.words({"against": "main"}) == ["check", f"--ledger={tmp_path}/tries.jsonl", "--json", "--against=main"]


# how it is run --------------------------------------------------------------------------------------------------------


def stand_in(body: Callable[[], None]) -> Any:
    """The server of the tools, with a program of ours in the place of the command line."""
    text = inspect.getsource(body) + f"\n{body.__name__}()"
    line = CommandLine([sys.executable, "-c", text], {0: "fine", 1: "regressed"}, 2, 5)
    return server_of(tools(None), line, "0", FOR_AGENTS)


def echo() -> None:
    import json
    import sys

    print(json.dumps({"words": sys.argv[1:], "read": sys.stdin.read()}))
    print("mind this", file=sys.stderr)
    sys.exit(1)


def test_an_answer_has_code_meaning_and_warnings_and_no_call_reads_the_protocol_s_input() -> None:
    (done,) = asked(stand_in(echo), ("check", {"against": "main"}))
    said = done.structured_content
    assert said == {
        "exit_code": 1,
        "meaning": "regressed",
        "answer": {"words": ["check", "--json", "--against=main"], "read": ""},
        "said": "mind this",
    }
    assert not done.is_error


def test_what_is_wrong_with_a_call_is_said_before_anything_runs() -> None:
    wrong = asked(
        stand_in(echo), ("count", {"keep": True}), ("count", {"ranks": "two"}), ("run", {}), ("recommend", {})
    )
    assert all(each.is_error and each.structured_content["exit_code"] == 2 for each in wrong)
    keep, ranks, run, memory = (each.structured_content["said"] for each in wrong)
    assert keep.startswith("count was not run: ") and "keep" in keep
    assert ranks == "count was not run: ranks: 'two' is not of type 'integer'"
    assert run == "there is no tool run: list, count, recommend, judge, check"
    assert memory == "recommend was not run: 'memory' is a required property"


def too_much() -> None:
    print("[" + "1," * 200_000 + "1]")


def broken() -> None:
    import sys

    print("no json")
    sys.exit("it broke")


def test_no_answer_is_an_error_with_its_reason() -> None:
    (long,) = asked(stand_in(too_much), ("check", {"against": "main"}))
    assert long.is_error and f"{MOST_CHARACTERS} at most" in long.structured_content["said"]
    (none,) = asked(stand_in(broken), ("check", {"against": "main"}))
    assert none.is_error and none.structured_content["said"] == "it broke"


def waiting() -> None:
    import signal
    import sys
    import time
    from pathlib import Path

    (folder,) = (word.partition("=")[2] for word in sys.argv if word.startswith("--against="))

    def end(number: int, frame: object) -> None:
        Path(folder, "ended").touch()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    Path(folder, "begun").touch()
    time.sleep(600)


def test_a_call_that_is_given_up_ends_its_command(tmp_path: Path) -> None:
    async def given_up() -> None:
        async with mcp.Client(stand_in(waiting)) as client:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(client.call_tool, "check", {"against": str(tmp_path)})
                    while not (tmp_path / "begun").exists():
                        await anyio.sleep(0.01)
                    scope.cancel()

    anyio.run(given_up)
    assert (tmp_path / "ended").exists()


def test_a_missing_sdk_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    done = CliRunner().invoke(app, ["mcp"])
    assert done.exit_code == Exit.USAGE and "pip install 'leantrain[mcp]'" in done.stderr
