"""Techniques as other packages have them: cards name who runs, each makes our update, and ours knows nothing of it."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from suite.entries.catalogue import catalogue
from suite.entries.packages import done_by, in_form_of, is_installed, packages_of, updates_of
from suite.entries.sources import code_of, roots_of
from suite.entries.together import built
from suite.entries.updates import UPDATES
from suite.loop.recipe import Recipe
from suite.record.job import Setting, Spelling, StackError, is_updates_alone, package_of
from suite.topics.peers import peers_on_board as peers
from tests.runs import new_run

GPT = Setting(baseline="gpt", size="pico")
BESIDE = [(id, package) for id, entry in catalogue().items() if entry.card.peers for package in packages_of(entry)]
OPTIMIZERS = [(id, package) for id, package in BESIDE if (catalogue()[id].folder / "packages.py").is_file()]
OTHER_FORM = {"adam8bit_blockwise", "adam4bit_rank1"}
"""Whose codes differ: torchao's blocks have 256 elements, and no scales of rank 1."""


def test_cards_name_by_one_word_the_packages_that_run() -> None:
    for id, entry in catalogue().items():
        named = {each for each in entry.card.peers if peers.RUNS.fullmatch(each)}
        assert (id, named) == (id, set(packages_of(entry)))


def after_steps(stack: str, steps: int = 3) -> list[torch.Tensor]:
    """Two parameters after some updates by given gradients."""
    random = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=random)) for shape in ((30, 20), (20,))]
    recipe = built(stack).recipe(new_recipe())
    groups = [
        {"params": parameters[:1], "weight_decay": recipe.weight_decay},
        {"params": parameters[1:], "weight_decay": 0.0},
    ]
    optimizer = built(stack).optimizer(groups, recipe)
    for _ in range(steps):
        for each in parameters:
            each.grad = torch.randn(each.shape, generator=random)
        optimizer.step()
    return [each.detach() for each in parameters]


def new_recipe() -> Recipe:
    return new_run("gpt", "baseline", size="pico", steps=4).recipe


@pytest.mark.parametrize(("id", "package"), OPTIMIZERS)
def test_a_package_makes_our_update(id: str, package: str) -> None:
    if not is_installed(package):
        pytest.skip(f"{package} is not installed")
    for ours, theirs in zip(after_steps(in_form_of(package, id)), after_steps(done_by(package, id)), strict=True):
        if id not in OTHER_FORM:
            torch.testing.assert_close(theirs, ours, rtol=2e-5, atol=2e-6)
        assert not torch.equal(theirs, after_steps(id, steps=0)[0 if theirs.ndim == 2 else 1])


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(StackError, match="choose one of own, lion_pytorch, timm"):
        built("lion:implementation=apex")
    with pytest.raises(StackError, match="the only part of a step that runs alone is update"):
        built("lion:part=forward")
    with pytest.raises(StackError, match="sam:implementation=peft: choose one of own"):
        built("sam:implementation=peft,rho=0.1")


def test_a_package_is_code_of_its_own_and_none_of_ours() -> None:
    ours, theirs = code_of(GPT, "lion"), code_of(GPT, "lion:implementation=timm")
    assert ours.trajectory != theirs.trajectory
    assert not any("packages" in each or "updates" in each for each in roots_of(GPT, "lion"))
    assert code_of(GPT, "lora:implementation=peft") == code_of(GPT, "lora")
    assert code_of(GPT, updates_of("lion")).trajectory != ours.trajectory


def test_a_stack_says_whose_it_is() -> None:
    assert package_of("lora:implementation=peft,rank=4") == "peft" and package_of("lora:implementation=own") == ""
    assert Spelling(done_by("timm", "lion")).names == ["lion"]
    assert is_updates_alone(updates_of("lion:factor=5")) and not is_updates_alone("lion")


def test_updates_alone_are_the_optimizer_s_with_gradients_that_stay() -> None:
    run = new_run("gpt", built(updates_of("adamw")), size="pico", steps=4)
    run.train(2)
    counters = {float(state["step"]) for state in run.optimizer.state.values()}
    assert counters == {2 * UPDATES} and peers.UPDATES == UPDATES
    (first,) = {re.sub(r"\d", "", type(each).__name__) for each in run.technique.techniques.values()} - {"UpdatesAlone"}
    assert first == "AdamWTechnique"
