"""Every technique's steps on a GPU that is pretended: its generators, copies, dispatch, autocast, streams, states."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from suite.device.random_state import RandomState, replayed, unchanged_randomness
from suite.entries.adapting import baseline_for
from suite.entries.catalogue import catalogue
from suite.entries.jobs import run_of
from suite.entries.pretrained import checkpoint
from suite.entries.spelling import build
from suite.loop.run import Run
from suite.record.job import BASELINE, Job, Setting
from tests.device.pretend import GPU, OnGpu, pretended_gpu

pytest.importorskip("triton")
NOT_PRETENDED = {
    "l2l": "its parameters are tensors of a class of its own",
    "zero_infinity_param": "its parameters are tensors of a class of its own",
    "torch_autoac": "it compiles",
}
OTHER_NOISE = {"actnn", "gact", "mesa", "fp8_hybrid"}  # their kernels draw, or round to eight bits, in another way
QUICK = {  # of each kind of path one: kernels, transfers, streams, generators, copies, autocast, growth, surgery
    BASELINE,
    "adamw",
    "amp_fp16",
    "autoprog",
    "autoswap",
    "bert2bert",
    "ckpt_siskind_dnc",
    "early_bird",
    "fp8_hybrid",
    "int8_mixed",
    "lamb",
    "layerscale",
    "lion",
    "lora",
    "mae",
    "mesa",
    "mlm_sparse_head",
    "rais",
    "revolve",
    "rezero",
    "sam",
    "set",
    "zero_offload",
}


def _ranks(name: str) -> int:
    card = catalogue()[name].card
    setting = Setting(baseline=card.baselines[0], size="pico", task=card.task)
    return build(name).recipe(baseline_for(setting).recipe_of(setting)).world_size


NAMES = [BASELINE, *(name for name in catalogue() if name not in NOT_PRETENDED and _ranks(name) == 1)]
CASES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES]


def built(name: str, device: str) -> Run:
    entry = catalogue().get(name)
    baseline, task = (entry.card.baselines[0], entry.card.task) if entry else ("gpt", "pretrain")
    setting = Setting(baseline=baseline, size="pico", task=task, device=device)
    weights = checkpoint(setting.but(device="cpu")) if task == "adapt" else None
    return run_of(Job(setting=setting, stack=name), baseline=baseline_for(setting), weights=weights)


@pytest.mark.parametrize("name", CASES)
def test_a_technique_trains_on_a_gpu_as_on_a_cpu(name: str) -> None:
    """To the bit but for kernels, which add up in another order before the recipe's bfloat16 rounds what they give."""
    expected = built(name, "cpu").train(2)
    launches: list[str] = []
    with pretended_gpu(launches):
        run = built(name, "cuda")
        losses = run.train(2)
        assert all(isinstance(each, OnGpu) or each.numel() == 0 for each in run.model.parameters())
    if name in OTHER_NOISE:
        assert losses == pytest.approx(expected, rel=0.02)
    elif launches:
        assert losses == pytest.approx(expected, rel=torch.finfo(torch.bfloat16).eps)
    else:
        assert losses == expected


@pytest.mark.parametrize("name", [BASELINE, "rais", "mae", "set"])
def test_a_state_comes_back_where_it_was(tmp_path: Path, name: str) -> None:
    """An optimizer's counters that were on the host stay there, and what a technique keeps there, too."""
    with pretended_gpu():
        run = built(name, "cuda")
        run.train(2)
        run.save(tmp_path / "state")
        following = run.train(2)
        resumed = built(name, "cuda")
        resumed.load(tmp_path / "state")
        for own, other in zip(run.optimizer.state.values(), resumed.optimizer.state.values(), strict=True):
            assert {key: each.device for key, each in own.items() if isinstance(each, torch.Tensor)} == {
                key: each.device for key, each in other.items() if isinstance(each, torch.Tensor)
            }
        assert resumed.train(2) == following


def test_a_random_state_is_of_both_generators() -> None:
    with pretended_gpu():
        state = RandomState.now(GPU)
        drawn = torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist()
        with replayed(state):
            assert (torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist()) == drawn
        after = RandomState.now(GPU)
        with unchanged_randomness(GPU):
            torch.rand(3, device="cuda"), torch.rand(3)
        assert torch.equal(RandomState.now(GPU).cpu, after.cpu)
        assert after.cuda is not None and torch.equal(RandomState.now(GPU).cuda, after.cuda)
        torch.rand(3, device="cuda")
        assert not torch.equal(RandomState.now(GPU).cuda, after.cuda)


def test_the_pretended_gpu_refuses_what_a_gpu_refuses() -> None:
    with pretended_gpu():
        x = torch.ones(3, device="cuda")
        assert math.isclose((x + torch.tensor(1.0)).sum().item(), 6.0)
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, device="cuda", generator=torch.Generator())
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        with pytest.raises(RuntimeError, match="pin"):
            x.pin_memory()
