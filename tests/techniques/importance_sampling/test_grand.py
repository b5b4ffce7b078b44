"""GraNd: the score against gradients one by one where attention is fused, the orders, and the study."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.vit import Vit
from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.reading.recording import with_few_examples
from techniques.importance_sampling.grand import study
from techniques.importance_sampling.grand.technique import Grand, gradient_norms
from techniques.importance_sampling.shared import pruning_study
from tests.runs import new_run
from tests.techniques.importance_sampling.imagined import LOSSES, REFERENCE, imagined_lab


def one_by_one(run: Run, batch: dict[str, Tensor]) -> Tensor:
    """Each example alone through autograd."""
    weights = [each for each in run.model.parameters() if each.requires_grad]
    norms = []
    for i in range(len(next(iter(batch.values())))):
        one = {name: each[i : i + 1] for name, each in batch.items()}
        loss = run.baseline.losses(run.baseline.forward(run.model, one), one).sum()
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        norms.append(torch.cat([each.flatten().double() for each in gradients if each is not None]).norm())
    return torch.stack(norms)


@pytest.mark.parametrize("baseline", ["bert", "gpt", "mae", "vit"])
def test_scores_are_norms_of_single_examples_gradients(baseline: str) -> None:
    """Through tied and frozen weights, masks, and attention that is fused."""
    run = new_run(baseline, size="pico", recipe="modern", steps=4)
    run.model.eval()
    batch, _ = run.next_batch()
    ours = gradient_norms(
        run.model, lambda model, each: run.baseline.losses(run.baseline.forward(model, each), each), batch
    )
    torch.testing.assert_close(ours.double(), one_by_one(run, batch), rtol=1e-4, atol=0)


def test_code_that_cannot_be_batched_is_taken_example_by_example() -> None:
    class ByValue(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.detach().sum()) > 0 else super().forward(-x)

    model = ByValue(4, 2)
    x = torch.randn(6, 4)
    batch = {"x": x, "y": torch.arange(6) % 2}
    losses = lambda model, each: F.cross_entropy(model(each["x"]), each["y"], reduction="none")  # noqa: E731
    plain = nn.Linear(4, 2)
    plain.load_state_dict(model.state_dict())
    turned = {**batch, "x": torch.where(x.sum(1, keepdim=True) > 0, x, -x)}
    torch.testing.assert_close(gradient_norms(model, losses, batch), gradient_norms(plain, losses, turned))


def test_random_order_scores_nothing_and_keeps_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "scout", lambda *_, **__: pytest.fail("a network was made to score"))
    first, again, other = (
        new_run("vit", "grand:order=random", size="pico", steps=10, seed=seed).data.train.tensors["pixels"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert len(first) == len(other) == 20
    assert not torch.equal(first, other)


def test_hard_and_easy_examples_are_the_two_ends() -> None:
    reference = new_run("vit", size="pico", steps=8)
    hard, easy = (
        new_run("vit", f"grand:keep=0.25,runs=1,order={each}", size="pico", steps=8) for each in ("hard", "easy")
    )
    own: Grand = hard.technique.techniques["grand"]  # type: ignore[attr-defined]
    assert hard.recipe == easy.recipe == reference.recipe
    assert own.scores.shape == (32,)
    name = next(iter(reference.data.train.tensors))
    everything = {each.numpy().tobytes() for each in reference.data.train.tensors[name]}
    kept = [{each.numpy().tobytes() for each in run.data.train.tensors[name]} for run in (hard, easy)]
    assert all(len(each) == 8 and each <= everything for each in kept)
    assert not kept[0] & kept[1]


def test_probes_compare_with_as_many_examples_at_random() -> None:
    run = new_run("vit", "grand", size="pico", recipe="classic", steps=8)
    run.train(8)
    probes = run.probes()
    control = new_run("vit", "grand:order=random", size="pico", recipe="classic", steps=8)
    control.train(8)
    expected = run.evaluate("test")["loss"] / control.evaluate("test")["loss"]
    assert probes["grand.loss_over_random"] == expected
    assert probes["grand.scoring_cost_in_runs"] == 2.0
    assert -1 <= probes["grand.agreement"] <= 1
    assert not any("over_random" in name for name in control.probes())


def test_study_compares_the_orders_and_the_networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(study, "KEEPS", (0.5,))
    monkeypatch.setattr(study, "HALVES", (1,))
    few = with_few_examples(Vit(), 24)
    monkeypatch.setattr(pruning_study, "baseline_of", lambda setting: few)
    monkeypatch.setattr(study, "run_of", lambda job: run_of(job, baseline=few))
    setting = new_run("vit", size="pico", steps=4).job.setting
    orders, stability = study.study(imagined_lab(setting, tmp_path))
    rows = [pruning_study.KeptRow(*row) for row in orders.rows]
    assert [(row.wrong_labels, row.order, row.seeds, row.loss) for row in rows[4:]] == [
        (0.1, "all", 3, REFERENCE),
        *((0.1, order, 2, LOSSES[order]) for order in pruning_study.ORDERS),
    ]
    assert {row.examples for row in rows} == {24}
    assert [row[:2] for row in stability.rows] == [(0.0, 1), (0.1, 1)]
    assert all(-1 <= cell <= 1 for row in stability.rows for cell in row[2:])
    assert [len(axes.lines) for axes in study.plot([orders, stability]).axes] == [4, 4, 2]
