"""3ML: the tokens of each block, and what early blocks must not know."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.entries.installed import baselines
from suite.loop.run import Run
from techniques.token_masking.mlm_mask_later.late_tokens import at_tokens, unattended
from techniques.token_masking.mlm_mask_later.technique import MaskLater
from techniques.token_masking.shared.masked_tokens import NO_LABEL
from tests.runs import new_run


def test_with_all_blocks_late_it_is_a_plain_model_with_more_masks() -> None:
    run = new_run("bert", "mlm_mask_later:late=none", size="pico", recipe="classic", steps=4)
    plain = new_run("bert", size="pico", recipe="classic", steps=4)
    batch, _ = run.data.batch(0, 0, 4)
    for each in (run, plain):
        each.model.eval()
    assert torch.equal(*(each.baseline.forward(each.model, batch).logits for each in (run, plain)))
    assert (batch["labels"] != NO_LABEL).sum() == 4 * 8
    run.train(1)


def test_a_copy_computes_alike() -> None:
    run = new_run("bert", "mlm_mask_later", size="pico", recipe="classic", steps=8)
    batch, _ = run.data.batch(0, 0, 4)
    copied = copy.deepcopy(run.model)
    assert torch.equal(*(run.baseline.forward(each, batch).logits for each in (run.model, copied)))


def test_with_a_sparse_head_on_top() -> None:
    run, plain = (
        new_run("bert", each, size="pico", recipe="classic", steps=8)
        for each in ("mlm_mask_later+mlm_sparse_head", "mlm_mask_later")
    )
    assert run.train(3) == pytest.approx(plain.train(3), rel=1e-6)
    assert run.count_step().flops < plain.count_step().flops


def test_arguments_of_a_block_follow_the_tokens() -> None:
    kept = torch.tensor([[0, 2], [1, 3]])
    assert at_tokens(torch.arange(8.0).view(2, 4), kept, 4).tolist() == [[0, 2], [5, 7]]
    rotation = torch.arange(4.0).view(1, 4, 1).expand(1, 4, 3)
    assert at_tokens(rotation, kept, 4)[..., 0].tolist() == [[0, 2], [1, 3]]
    mask = torch.arange(16).view(1, 1, 4, 4)
    assert at_tokens(mask, kept, 4).tolist() == [[[[0, 2], [8, 10]]], [[[5, 7], [13, 15]]]]
    for other in (None, 3, torch.tensor(1.0), torch.zeros(5, 4)):
        assert at_tokens(other, kept, 4) is other


def test_masks_of_every_kind_leave_late_tokens_out() -> None:
    class Block(torch.nn.Module):
        def forward(self, hidden: Any, attention_mask: Any = None, other: Any = None) -> None: ...

    late = torch.tensor([[False, True]])
    seen = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    assert unattended(Block(), torch.float32, late, (seen,), {})["attention_mask"][0, 0].tolist() == [[True, False]] * 2
    for args in ((), (None,), (torch.zeros(1, 1, 1, 2), 5)):
        bias = unattended(Block(), torch.float32, late, args, {})["attention_mask"]
        assert bias[..., 0].eq(0).all()
        assert bias[..., 1].eq(torch.finfo(torch.float32).min).all()


def of_family(name: str, folder: Path) -> Run:
    (folder / "config.json").write_text(json.dumps(dict(baselines()["bert"].families()[name].config)))
    return new_run("bert", MaskLater(), size="pico", recipe="classic", steps=4, model=str(folder))


@pytest.mark.parametrize("name", ["roberta", "electra", "distilbert", "modernbert"])
def test_other_encoders(name: str, tmp_path: Path) -> None:
    """With positions that are added, and with rotations."""
    run = of_family(name, tmp_path)
    assert all(torch.tensor(run.train(2)).isfinite())


@pytest.mark.parametrize(
    ("name", "reason"), [("deberta", "blocks of"), ("albert", "one block"), ("t5", "stacks"), ("bart", "stacks")]
)
def test_what_cannot_leave_tokens_out_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        of_family(name, tmp_path)


def test_bad_settings_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="larger share"):
        new_run("bert", "mlm_mask_later:rate=0.01", size="pico", steps=4)
    with pytest.raises(ValueError, match="recipe modern"):
        new_run("bert", "mlm_mask_later", size="pico", recipe="compiled", steps=4)
    for baseline in ("gpt", "vit", "mae"):
        with pytest.raises(ValueError, match="share"):
            new_run(baseline, MaskLater(), size="pico", steps=4)
