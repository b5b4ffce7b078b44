"""A fitted model under DDP and FSDP2 on two real ranks: gradients of the same training without fit, to the bit."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.leantrain.fit_ranks import cases
from tests.real_ranks import ROOT, two_of

Ranks = list[dict[str, str]]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What is otherwise than in plain training, case by case, in words, by rank."""
    return two_of(Path(__file__).with_name("fit_ranks.py"), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", ["ddp before the group", *cases()])
def test_ranks_train_as_without_fit(two_ranks: Ranks, case: str) -> None:
    assert [rank[case] for rank in two_ranks] == ["", ""]


def test_one_process_fits_without_fsdp_and_without_a_group() -> None:
    code = """if True:
        import sys
        sys.modules["torch.distributed.fsdp"] = sys.modules["torch.distributed.tensor"] = None  # not to be imported
        import torch
        from torch import nn
        from leantrain.fitting import fit
        block = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        model, batch = nn.Sequential(block(), block(), block()), torch.ones(64, 8)
        loss = lambda model, batch: model(batch).square().mean()
        plan = fit(model, batch, loss, "1GB").plan
        fitted = fit(model, batch, loss, f"{plan.peak_bytes - 1}B")
        with fitted.step():
            loss(model, batch).backward()
        assert fitted.plan.recomputed
    """
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
