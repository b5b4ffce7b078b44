"""ZeRO-Infinity's parameter offload: the trajectory from either tier, tiles, saved and resumed, refusals."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from suite.chain.tiers import FileTier, TierFull
from suite.loop.run import Run
from suite.loop.technique import Unavailable
from suite.measure.at_scale.full_size import Scale, counted
from suite.measure.contenders.stock import data_of
from suite.meters.holders import Living
from suite.meters.state import parameter_bytes
from suite.record.job import Setting
from techniques.offloading.shared.away import Away
from techniques.offloading.zero_infinity_param.technique import STATE_BYTES, ZeroInfinityParam
from techniques.offloading.zero_infinity_param.tiled import Tiled
from tests.model.further_models import further_run
from tests.runs import new_run


def running(technique: ZeroInfinityParam | None, baseline: str = "gpt", **setting: Any) -> Run:
    return new_run(baseline, technique or "baseline", **{"size": "pico", "recipe": "classic", "steps": 6, **setting})


def same(left: Run, right: Run) -> bool:
    pairs = zip(left.model.parameters(), right.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("baseline", "tier", "window"), [("gpt", "file", 0), ("mae", "host", 7)])
def test_the_trajectory_is_the_baselines_to_the_bit(baseline: str, tier: Any, window: int, tmp_path: Path) -> None:
    technique = ZeroInfinityParam(tier=tier, window=window, folder=str(tmp_path))
    ours, plain = running(technique, baseline), running(None, baseline)
    assert ours.train(2) == plain.train(2)
    assert same(ours, plain)
    assert ours.evaluate() == plain.evaluate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["albert", "t5", "swin"])
def test_models_of_other_makes_train_as_they_do_without(name: str) -> None:
    """Blocks that run again and again, that read more than hidden states, and stages of blocks."""
    losses = further_run(name, ZeroInfinityParam()).train(2)
    assert losses == further_run(name, "baseline").train(2)


@pytest.mark.parametrize("linear", [nn.Linear(12, 40), nn.Linear(12, 40, bias=False), Conv1D(40, 12)])
def test_tiles_give_the_whole_layers_outputs_and_gradients(linear: nn.Module) -> None:
    tiled, x = Tiled(linear, 3), torch.randn(2, 5, 12, requires_grad=True)
    torch.testing.assert_close(tiled(x), linear(x), rtol=1e-6, atol=1e-6)
    (ours,) = torch.autograd.grad(tiled(x).square().sum(), x)
    (theirs,) = torch.autograd.grad(linear(x).square().sum(), x)
    torch.testing.assert_close(ours, theirs)
    assert (tiled.in_features, tiled.out_features) == (12, 40)
    assert sum(each.numel() for each in tiled.parameters()) == sum(each.numel() for each in linear.parameters())
    with pytest.raises(ValueError, match="choose fewer"):
        Tiled(linear, 41)


def test_with_tiles_it_trains_as_the_baseline_but_for_roundings() -> None:
    ours, plain = running(ZeroInfinityParam(tiles=3)), running(None)
    assert any(isinstance(each, Tiled) for each in ours.model.modules())
    assert ours.train(4) == pytest.approx(plain.train(4), rel=1e-4)


def test_a_checkpoint_is_a_plain_models() -> None:
    ours, plain = running(ZeroInfinityParam()), running(None)
    ours.train(2)
    plain.model.load_state_dict(ours.model.state_dict())
    assert same(ours, plain)


def test_a_tier_too_small_is_refused_before_training_with_what_would_fit() -> None:
    needed = STATE_BYTES * sum(each.numel() for each in running(None).model.parameters())
    with pytest.raises(TierFull, match=f"give it {needed:,} or more"):
        running(ZeroInfinityParam(tier_gb=(needed - 100) / 2**30))
    run = running(ZeroInfinityParam(tier_gb=needed / 2**30))
    run.train(2)
    assert run.technique.member(ZeroInfinityParam).store.peak_bytes <= needed


def test_a_full_disk_ends_the_run_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = running(ZeroInfinityParam(tier="file", folder=str(tmp_path)))
    run.train(1)
    before = {name: each.clone() for name, each in run.model.state_dict().items()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TierFull, match="make room"):
        run.train(1)
    monkeypatch.undo()
    assert isinstance(run.technique.member(ZeroInfinityParam).store, FileTier) and list(tmp_path.iterdir()) == []
    assert all(torch.equal(each, before[name]) for name, each in run.model.state_dict().items())
    run.train(1)


def test_without_values_the_device_holds_what_it_does_with_them() -> None:
    before = Living()
    run = running(ZeroInfinityParam())
    run.train(2)
    with before.left_out(*data_of(run)):
        real = run.count_step()
    shapes = counted("zero_infinity_param", Scale(Setting(baseline="gpt", size="pico", recipe="classic", steps=6)))
    assert shapes.counters is not None, shapes.unavailable
    assert shapes.counters.peak_tensor_bytes == real.peak_tensor_bytes
    outside = sum(each.nbytes for each in run.model.parameters() if not isinstance(each, Away))
    assert shapes.parameter_bytes == parameter_bytes(run.model) == outside


def test_a_compiled_graph_is_refused() -> None:
    with pytest.raises(Unavailable, match="take modern"):
        running(ZeroInfinityParam(), recipe="compiled")
