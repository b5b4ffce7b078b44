"""What cannot be stacked is refused in a sentence, the same at whichever command, and what can is not."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suite.cli import app
from suite.cli.shared import Exit
from suite.entries.catalogue import UnknownId
from suite.entries.together import built, run_of
from suite.loop.sites import NotAttached
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.measure import torchrun
from suite.record.job import Job, Setting, StackError
from suite.topics.memory_plan import within_budgets as memory_plan

SETTING = Setting(baseline="gpt", size="pico", steps=4)


STACKS = {
    "baseline": "",
    "lion:implementation=timm": "",
    "lion:part=update": "",
    "revolve+lion": "",
    "revolve:budget=1+vdnn": "",  # one that plans, and one that does nothing
    "ckpt_chen_sqrt+rotor": "ckpt_chen_sqrt and rotor cannot be stacked: each plans how the same blocks run",
    "rotor+lion+revolve": "rotor and revolve cannot be stacked: each plans how the same blocks run",
    "lion+lamb": "lion and lamb cannot be stacked: each replaces the optimizer",
    "lion:implementation=apex": "choose one of own, lion_pytorch, timm",
    "lion:beta9=1": "lion has no hyper-parameter 'beta9'",
    "lionn": "lionn",
}
"""With what is wrong with them."""


class Joined(Exception):
    """Is raised in the place of the ranks' meeting: the stack came through the door."""


def meet(*_: object) -> None:
    raise Joined


def refused(parser: argparse.ArgumentParser, message: str) -> None:
    raise StackError(message)


def started(stack: str) -> None:
    """The stack under torchrun, until ranks would be joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchrun, "joined", meet)
        patch.setattr(argparse.ArgumentParser, "error", refused)
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "2")
        torchrun.main(["-t", "zero2" if stack == "baseline" else f"zero2+{stack}"])


def shown(stack: str, folder: Path) -> None:
    answer = CliRunner().invoke(app, ["leaderboard", "-t", stack, "--results", str(folder)])
    assert answer.exit_code in (Exit.USAGE, Exit.NOTHING)
    if answer.exit_code == Exit.USAGE:
        raise StackError(answer.output)


@pytest.mark.parametrize("stack", STACKS)
def test_every_way_in_gives_one_answer(stack: str, tmp_path: Path) -> None:
    ways: dict[str, Callable[[], object]] = {
        "a stack": lambda: built(stack),
        "a run": lambda: run_of(Job(setting=SETTING, stack=stack)),
        "a plan of memory": lambda: memory_plan.solvers([stack]),
        "torchrun": lambda: started(stack),
        "a leaderboard": lambda: shown(stack, tmp_path),
    }
    for way, enter in ways.items():
        said = ""
        try:
            enter()
        except (StackError, UnknownId) as error:
            said = str(error)
        except (ValueError, StopIteration):
            assert way == "a plan of memory"  # which has no plan of this one: it is behind the door
        except Joined:
            assert way == "torchrun"
        assert bool(said) == bool(STACKS[stack]) and STACKS[stack] in " ".join(said.split()), (way, said)


def test_blocks_go_before_they_are_changed() -> None:
    with pytest.raises(StackError, match="put first what takes them away, or leave it out"):
        run_of(Job(setting=SETTING, stack="early_bird+progressive_stacking"))
    assert run_of(Job(setting=SETTING, stack="progressive_stacking+early_bird")).step == 0


@pytest.mark.parametrize("stack", ["zero3_fsdp+sam", "esam+zero3_fsdp", "zero3_fsdp+vit_sam+lion", "gact+zero3_fsdp"])
def test_ranks_with_shards_have_no_gradients_of_their_own_examples(stack: str) -> None:
    with pytest.raises(StackError, match=r"^zero3_fsdp and \w+ cannot be stacked: a technique acts on the"):
        built(stack)


@pytest.mark.parametrize("stack", ["zero2+sam", "zero3_fsdp+sam:rho=0", "zero3_fsdp+gact:adaptive=false"])
def test_others_have_them_or_nobody_asks(stack: str) -> None:
    assert len(built(stack).techniques) == 2


@pytest.mark.parametrize("stack", ["prefix_tuning+prompt_tuning", "prompt_tuning+prefix_tuning"])
def test_what_another_one_freezes_is_told_before_the_first_step(stack: str) -> None:
    first = stack.partition("+")[0]
    with pytest.raises(NotAttached, match=rf"^{first} trains \S+, which another technique of this stack has frozen"):
        run_of(Job(setting=SETTING.but(task="adapt"), stack=stack))


def test_what_ranks_find_when_they_set_up_is_a_sentence_of_torchrun_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_of(*_: object, **__: object) -> None:
        raise StackError("a technique takes away blocks")

    for name, value in {"joined": lambda *_: None, "run_of": run_of}.items():
        monkeypatch.setattr(torchrun, name, value)
    monkeypatch.setattr(torchrun.dist, "destroy_process_group", lambda: None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        torchrun.main(["-t", "zero2"])
    assert "a technique takes away blocks" in capsys.readouterr().err


class Broken(Technique):
    def model(self, model: object, run: object) -> object:  # type: ignore[override]
        raise AttributeError("its own")


def test_an_error_of_a_technique_s_own_stays() -> None:
    stack = Stack({"one": Broken(), "other": Technique()})
    with pytest.raises(AttributeError, match="its own"):
        run_of(Job(setting=SETTING, stack="lion+lawa"), technique=stack)
