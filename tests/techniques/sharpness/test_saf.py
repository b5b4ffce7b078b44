"""SAF against a loop with a dictionary of past outputs, the trajectory loss against its formula, the buffer's traps."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baselines.vit import LabelledPixels
from suite.entries.installed import baselines
from suite.loop.data import Data
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups, Technique
from techniques.sharpness.saf.technique import PastOutputs, Saf
from techniques.sharpness.sam.technique import Sam
from techniques.sharpness.shared.trajectory import trajectory_losses
from tests.runs import Planted, new_run

EXAMPLES, BATCH = 50, 20  # two and a half batches an epoch: some batches stand in two epochs


@dataclass
class Few(Planted):
    """Few examples, so that they come back soon and, without noise, as they were; and plain SGD, as Adam's first steps
    magnify rounding."""

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, batch_size=BATCH)

    def data(self, data: Data, run: Run) -> Data:
        return replace(data.subset(torch.arange(EXAMPLES)), transform=LabelledPixels(data.shape.channels))  # type: ignore[attr-defined]

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=recipe.learning_rate)


def new(steps: int = 12, **techniques: Technique) -> Run:
    return new_run("vit", Stack({"few": Few(), **techniques}), recipe="classic", seed=4, steps=steps)


def logits(seed: int, *shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# the trajectory loss --------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), temperature=st.floats(0.5, 10), scale=st.floats(0.1, 20))
@settings(max_examples=50, deadline=None)
def test_the_loss_is_the_formula_and_its_gradient_pulls_to_the_past(
    seed: int, temperature: float, scale: float
) -> None:
    now, past = logits(seed, 6, 5, scale=scale).requires_grad_(), logits(seed + 1, 6, 5, scale=scale)
    q, p = (now / temperature).softmax(-1), (past / temperature).softmax(-1)
    expected = temperature**2 * (p * (p / q).log()).sum(-1)
    found = trajectory_losses(now, past, temperature)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4 * temperature**2)
    assert (found > -1e-4 * temperature**2).all()
    (gradient,) = torch.autograd.grad(found.sum(), now)
    torch.testing.assert_close(gradient, temperature * (q - p), rtol=1e-3, atol=1e-5 * temperature)


def test_certain_outputs_stay_finite_where_the_logarithm_of_a_softmax_does_not() -> None:
    """``softmax().log()``, as the authors write it, is minus infinity where a probability underflows."""
    now, past = torch.tensor([[900.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 900.0]])
    theirs = F.kl_div((now / 5).softmax(-1).log(), (past / 5).softmax(-1), reduction="none").sum()
    ours = trajectory_losses(now, past, 5.0).sum()
    ours.backward()
    assert not math.isfinite(theirs.item())
    assert ours.item() == pytest.approx(25 * 180) and now.grad is not None and now.grad.isfinite().all()


# the buffer -----------------------------------------------------------------------------------------------------------


@given(
    depth=st.integers(1, 4),
    batches=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), max_size=15),
)
@settings(max_examples=60, deadline=None)
def test_the_buffer_gives_the_output_of_depth_visits_ago(depth: int, batches: list[list[int]]) -> None:
    """Against a list of each example's outputs; one that stands twice in a batch is one visit, with its last output."""
    past = PastOutputs(depth, 5, 2)
    lists: dict[int, list[float]] = {index: [] for index in range(5)}
    for number, batch in enumerate(batches):
        indices = torch.tensor(batch)
        values, known = past.get(indices)
        for index, value, is_known in zip(batch, values[:, 0].tolist(), known.tolist()):
            assert is_known == bool(lists[index])
            if is_known:
                assert value == lists[index][-depth if len(lists[index]) >= depth else 0]
        written = {index: 100.0 * number + place for place, index in enumerate(batch)}
        past.put(indices, torch.tensor([[100.0 * number + place, 0.0] for place in range(len(batch))]))
        for index, last in written.items():
            lists[index].append(last)


# the whole run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs_ago", [1, 2])
def test_update_by_update_a_loop_of_its_own(epochs_ago: int) -> None:
    saf = Saf(strength=0.7, temperature=4.0, epochs_ago=epochs_ago, start=0.3)
    run = new(steps=20, saf=saf)
    model = baselines()["vit"].model("nano", run.data)
    model.load_state_dict(run.model.state_dict())
    named = dict(model.named_parameters())
    said: dict[int, list[Tensor]] = {}
    active = 0
    for step in range(12):
        batch, indices = run.next_batch()
        run.train_step(batch, indices)
        out = model(batch["pixel_values"])
        loss = F.cross_entropy(out, batch["labels"])
        terms = []
        for i, row in zip(indices.tolist(), out):
            if i in said and step >= 6:
                past = said[i][max(-epochs_ago, -len(said[i]))]
                p, log_q = (past / 4).softmax(-1), (row / 4).log_softmax(-1)
                terms.append(16.0 * (p * (p.log() - log_q)).sum())
        if terms:
            active += 1
            loss = loss + 0.7 * torch.stack(terms).sum() / BATCH
        assert run.loss.item() == pytest.approx(loss.item(), rel=1e-4)
        for i, row in dict(zip(indices.tolist(), out)).items():
            said.setdefault(i, []).append(row.detach())
        gradients = torch.autograd.grad(loss, list(named.values()))
        total = torch.cat([each.flatten() for each in gradients]).norm().item()
        rate, decay = run.recipe.learning_rate_at(step), run.recipe.weight_decay
        scale = min(1.0, run.recipe.gradient_clip / (total + 1e-6))
        with torch.no_grad():
            for p, each in zip(named.values(), gradients):
                p -= rate * (scale * each + (decay if p.ndim >= 2 else 0.0) * p)
        for name, ours in run.model.named_parameters():
            torch.testing.assert_close(ours.detach(), named[name].detach(), rtol=1e-4, atol=1e-6)
    assert active == 6


def test_a_second_forward_pass_in_a_step_is_not_another_visit() -> None:
    """Under SAM the loss is asked for twice: what is stored is the output at the weights themselves."""
    saf = Saf(start=0.0)
    run = new(saf=saf, sam=Sam(rho=5.0))
    batch, indices = run.next_batch()
    with torch.no_grad():
        before = run.model(batch["pixel_values"])
    run.train_step(batch, indices)
    assert saf.past is not None and saf.past.visits.sum() == BATCH
    torch.testing.assert_close(saf.past.outputs[0, indices], before)


def test_evaluation_neither_reads_nor_writes_the_past() -> None:
    saf = Saf(start=0.0)
    run, plain = new(saf=saf), new()
    run.train(3)
    plain.model.load_state_dict(run.model.state_dict())
    assert saf.past is not None
    outputs, visits = saf.past.outputs.clone(), saf.past.visits.clone()
    assert run.evaluate() == plain.evaluate()
    assert torch.equal(outputs, saf.past.outputs) and torch.equal(visits, saf.past.visits)
    assert saf.past.outputs.nbytes == 3 * 4 * EXAMPLES * 10, "one fewer than the authors' E~ + 1"


def test_outputs_for_each_token_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="saf_mesa"):
        new_run("gpt", "saf", steps=2).train(1)


def test_half_precision_outputs_are_stored_and_compared_in_float32() -> None:
    past = PastOutputs(1, 3, 2)
    past.put(torch.tensor([1]), torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16))
    values: Any = past.get(torch.tensor([1]))[0]
    assert values.dtype == torch.float32 and values.tolist() == [[1.5, -2.0]]
    assert trajectory_losses(values.bfloat16(), values, 5.0).dtype == torch.float32
