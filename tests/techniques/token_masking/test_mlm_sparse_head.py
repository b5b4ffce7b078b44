"""The sparse prediction head: equal to the dense one, at the cost of the labelled positions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.entries.installed import baselines
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.head import head_of
from techniques.token_masking.mlm_sparse_head.technique import (
    PostponedLogits,
    SparseHead,
    labelled_cross_entropy,
    postponed,
)
from techniques.token_masking.shared.masked_tokens import NO_LABEL, Masks, at_share, masks_of
from tests.runs import new_run


class Modelled(nn.Module):
    """Two matrices in a row, and nothing behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 11)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.last(self.first(hidden))


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """As BERT's baseline has them."""
    tokens = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="none")
    return tokens.view_as(labels).sum(1) / (labels != NO_LABEL).sum(1).clamp(min=1)


@given(seed=st.integers(0, 10_000), share=st.floats(0, 1), known=st.booleans())
@settings(max_examples=40)
def test_loss_and_gradients_are_the_dense_heads(seed: int, share: float, known: bool) -> None:
    """In float64, whatever the masks: none, all, uneven rows."""
    torch.manual_seed(seed)
    model, hidden = Modelled().double(), torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(11, (3, 7)).where(torch.rand(3, 7) < share, NO_LABEL)
    wanted = [hidden, *model.parameters()]
    dense = losses(model(hidden), labels).mean()
    expected = torch.autograd.grad(dense, wanted)
    count = int((labels != NO_LABEL).sum()) if known else None
    with postponed([model.first, model.last], 11, partial(labelled_cross_entropy, labels=count)):
        logits = model(hidden)
    assert isinstance(logits, PostponedLogits)
    assert logits.shape == (3, 7, 11)
    sparse = losses(logits, labels).mean()
    torch.testing.assert_close(sparse, dense)
    for ours, theirs in zip(torch.autograd.grad(sparse, wanted), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not {"forward"} & (vars(model.first).keys() | vars(model.last).keys())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_reduction_and_option(reduction: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 5), torch.rand(4)
    targets = torch.tensor([0, 7, 3, 7, 7, 2, 1, 7, 7])
    options: dict[str, Any] = {"ignore_index": 7, "reduction": reduction, "label_smoothing": 0.1, "weight": weight}
    head = nn.Linear(5, 4)
    ours = labelled_cross_entropy(hidden, targets, head, **options)
    torch.testing.assert_close(ours, F.cross_entropy(head(hidden), targets, **options))


def test_whatever_else_is_asked_of_the_logits_computes_all() -> None:
    model, hidden = Modelled(), torch.randn(2, 3, 6)
    with postponed([model.first, model.last], 11, labelled_cross_entropy):
        logits = model(hidden)
    dense = model(hidden)
    for asked in (lambda x: x.argmax(-1), lambda x: x[:, :-1], lambda x: x.softmax(-1), lambda x: 2 * x):
        assert torch.equal(asked(logits), asked(dense))
    soft = dense.flatten(0, 1).softmax(-1)
    hard = soft.argmax(-1).view(2, 3)
    for of in (lambda x: F.cross_entropy(x.flatten(0, 1), soft), lambda x: F.cross_entropy(x.mT, hard)):
        assert torch.equal(of(logits), of(dense))


def test_more_labels_than_were_announced_end_the_run() -> None:
    with pytest.raises(RuntimeError, match="more labels"):
        labelled_cross_entropy(torch.randn(4, 2), torch.tensor([0, 1, 0, -100]), nn.Linear(2, 2), labels=2)


def test_the_head_is_computed_under_the_models_precision() -> None:
    """Losses are made outside of the model, where autocast is off."""
    run = new_run("bert", "mlm_sparse_head", size="pico", recipe="modern", steps=4)
    plain = new_run("bert", size="pico", recipe="modern", steps=4)
    kinds = []
    for each in (run, plain):
        (projection,) = each.anatomy.head
        projection.module.register_forward_hook(lambda _, __, output: kinds.append(output.dtype))
    assert run.train(2) == pytest.approx(plain.train(2), rel=1e-2)
    assert set(kinds) == {torch.bfloat16}


def test_rows_with_unlike_numbers_of_labels_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bernoulli masks: labels are counted in each step."""
    masks = type(new_run("bert", size="pico", steps=4).data.transform)
    exact = masks.__call__

    def bernoulli(self: Any, batch: Any, generator: torch.Generator) -> Any:
        batch_of_all = exact(self, batch, generator)
        some = torch.rand(batch_of_all["labels"].shape, generator=generator) < 0.7
        return batch_of_all | {"labels": batch_of_all["labels"].where(some, NO_LABEL)}

    monkeypatch.setattr(masks, "__call__", bernoulli)
    run, plain = (new_run("bert", each, size="pico", recipe="classic", steps=8) for each in ("mlm_sparse_head", ""))
    assert run.technique.techniques["mlm_sparse_head"].masks.labels is None  # type: ignore[attr-defined]
    assert run.train(4) == pytest.approx(plain.train(4), rel=1e-6)


def test_what_the_masks_say() -> None:
    data = baselines()["bert"].data("nano", "pretrain")
    assert masks_of(data) == Masks(length=16, labels=5, token=1)
    twice = masks_of(type(data)(**{**vars(data), "transform": at_share(data.transform, 0.5)}))
    assert twice == Masks(length=16, labels=8, token=1)
    with pytest.raises(ValueError, match="field share"):
        at_share(lambda batch, generator: batch, 0.5)


HEADS = {
    "roberta": ["lm_head"],
    "distilbert": ["vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"],
    "electra": ["generator_predictions", "generator_lm_head"],
    "albert": ["predictions"],
    "modernbert": ["head", "decoder"],
    "deberta": ["cls"],
    "t5": ["model.lm_head"],
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_other_models(name: str, tmp_path: Path) -> None:
    run = of_family(name, tmp_path)
    assert [part.path for part in run.technique.member(SparseHead).head.parts] == HEADS[name]
    assert all(torch.tensor(run.train(2)).isfinite())


def of_family(name: str, folder: Path) -> Run:
    (folder / "config.json").write_text(json.dumps(dict(baselines()["bert"].families()[name].config)))
    return new_run("bert", SparseHead(), size="pico", recipe="classic", steps=4, model=str(folder))


def test_what_has_no_such_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="output layer is its last step"):
        of_family("bart", tmp_path)
    for baseline in ("gpt", "vit", "mae"):
        with pytest.raises(ValueError, match="masked language models"):
            new_run(baseline, SparseHead(), size="pico", steps=4)
    with pytest.raises(ValueError, match="recipe modern"):
        new_run("bert", "mlm_sparse_head", size="pico", recipe="compiled", steps=4)


def test_a_head_with_dropout_is_refused() -> None:
    model = new_run("bert", size="pico", steps=4).model
    parts = anatomy(model)
    (projection,) = parts.head
    parts.replace(projection.path, nn.Sequential(nn.Dropout(0.5), projection.module))
    batch = torch.arange(16).view(1, 16)
    with pytest.raises(ValueError, match="dropout"):
        head_of(anatomy(model), lambda: model(input_ids=batch))
