"""SViTE: its death rate against torch's annealing, its interval and FLOPs, and its structured form."""

import math
from functools import partial

import pytest
import torch

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.model.pruning import Units
from techniques.shared.sparse.masks import density, masked
from techniques.sparse_training.svite.structured import Structure, head_scores
from techniques.sparse_training.svite.technique import SViTE, death_rate
from tests.runs import new_run


def running(technique: SViTE, steps: int = 12, baseline: str = "vit") -> Run:
    return new_run(baseline, Stack({"svite": technique}), size="pico", recipe="classic", steps=steps)


def test_death_rate_is_that_of_torchs_cosine_annealing():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40, eta_min=0.005)
    for step in range(1, 41):
        optimizer.step()
        annealing.step()
        assert death_rate(step, 40, 0.5, 0.005) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_interval_is_a_hundredth_of_the_run():
    own = SViTE()
    assert [step for step in range(1, 1000) if own.explores_after(step, 700)][:3] == [7, 14, 21]
    assert [step for step in range(1, 9) if own.explores_after(step, 8)] == [2, 4, 6]


def test_its_flops_are_sparse_but_for_the_dense_gradients_of_explorations():
    run = running(SViTE(interval=4))
    run.train(run.recipe.steps)
    share = density(run)
    (spent,) = run.probes().values()
    assert spent == pytest.approx((2 * (2 * share + 1) + 10 * 3 * share) / 36)  # after steps 4 and 8 of 12
    assert not run.technique.techniques["svite"].dense, "gradients are kept to the step's end"  # type: ignore[attr-defined]
    assert running(SViTE(sparsity=0.0)).probes() == {}


# whole heads and neurons --------------------------------------------------------------------------------------------


def structure_of(run: Run) -> Structure:
    structure = run.technique.techniques["svite"].structure  # type: ignore[attr-defined]
    assert isinstance(structure, Structure)
    return structure


def on(run: Run, units: Units) -> set[int]:
    return set(structure_of(run).unit_mask(run.model, units).nonzero()[:, 0].tolist())


def moved(kept: set[int], count: int, score: list[float], growth: list[float], drops: int) -> set[int]:
    """One unit at a time: the least worth go, then the steepest of all that are off come."""
    stay = set(sorted(kept, key=lambda unit: score[unit])[drops:])
    return stay | set(sorted(set(range(count)) - stay, key=lambda unit: -growth[unit])[:drops])


def test_scores_of_heads_one_example_and_head_at_a_time():
    output, gradient = torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    score, growth = head_scores(output, gradient, count=4)
    for head in range(4):
        own = slice(2 * head, 2 * head + 2)
        products = [float((output[n, :, own] * gradient[n, :, own]).sum()) for n in range(3)]
        assert float(score[head]) == pytest.approx(sum(map(abs, products)) / 3, rel=1e-5)
        norms = [float(gradient[n, :, own].abs().sum()) for n in range(3)]
        assert float(growth[head]) == pytest.approx(sum(norms) / 3, rel=1e-5)


def test_heads_and_neurons_move_as_an_own_reading_of_the_rule_says():
    """Heads by the gradient of what they give, taken from a copy of the run that explores later; neurons by norms."""
    run, later = (
        new_run("vit", f"svite:structured=true,interval={interval}", size="nano", recipe="classic", steps=8)
        for interval in (2, 7)
    )
    with_biases(run), later.model.load_state_dict(run.model.state_dict())
    run.train(1)
    later.train(1)
    given: dict[str, torch.Tensor] = {}
    hooks = [
        later.model.get_submodule(units.joint).register_forward_pre_hook(partial(keep_gradient, given, units.joint))
        for units in structure_of(later).heads
    ]
    before = {units.joint: on(later, units) for units in structure_of(later).units}
    later.optimizer.zero_grad()
    later.backward(later.forward(later.next_batch()[0]))
    slopes = {name: each.grad.clone() for name, each in later.model.named_parameters() if each.grad is not None}
    for hook in hooks:
        hook.remove()
    run.train(1)
    later.train(1)
    weights = dict(later.model.named_parameters())
    share = death_rate(2, 8, 0.5, 0.005)
    for units in structure_of(run).units:
        if units in structure_of(run).heads:
            output = given[units.joint]
            assert output.grad is not None
            score, growth = (each.tolist() for each in head_scores(output.detach(), output.grad, units.count))
        else:
            score, growth = (norms(units, values) for values in (weights, slopes))
        kept = before[units.joint]
        assert on(run, units) == moved(kept, units.count, score, growth, math.ceil(share * len(kept))), units.joint


def with_biases(run: Run) -> Run:
    """The run with random biases: they begin at 0, hide what they add, and leave neurons that are off no gradient."""
    with torch.no_grad():
        for name, each in run.model.named_parameters():
            if name.endswith("bias"):
                each.uniform_(-0.5, 0.5)
    return run


def keep_gradient(given: dict[str, torch.Tensor], path: str, _: torch.nn.Module, args: tuple[torch.Tensor]) -> None:
    given[path] = args[0]
    given[path].retain_grad()


def norms(units: Units, values: dict[str, torch.Tensor]) -> list[float]:
    totals = []
    for unit in range(units.count):
        parts = [values[f"{units.joint}.weight"].detach()[:, unit]]
        parts += [values[f"{path}.weight"].detach()[row] for path, rows in units.rows.items() for row in rows[unit]]
        totals.append(sum(float(part.abs().sum()) for part in parts))
    return totals


def test_what_is_evaluated_lacks_heads_and_neurons_and_computes_the_same():
    run = with_biases(new_run("mae", "svite:structured=true,interval=2", size="nano", recipe="classic", steps=9))
    first = [on(run, units) for units in structure_of(run).units]
    run.train(9)
    units = structure_of(run).units
    assert [on(run, each) for each in units] != first
    assert [len(on(run, each)) for each in units] == [each.count // 2 for each in units]
    small = run.technique.evaluated(run.model, run)
    sizes = [sum(each.numel() for each in model.parameters()) for model in (small, run.model)]
    masks = sum(int((~mask).sum()) for _, mask in masked(run.anatomy))
    assert sizes[0] < sizes[1] - masks, "columns of heads and biases go, too"
    assert not any("sparsity_mask" in name for name, _ in small.named_buffers())
    batch, _ = run.next_batch()
    losses = []
    for model in (small.eval(), run.model.eval()):
        torch.manual_seed(0)
        with torch.no_grad():
            losses.append(run.baseline.losses(run.baseline.forward(model, batch), batch))
    assert torch.allclose(*losses, atol=1e-5)


def test_a_sparsity_without_a_head_is_refused():
    with pytest.raises(ValueError, match=r"leaves 0 of the 2 units.*at least one goes and one stays"):
        new_run("vit", "svite:structured=true,sparsity=0.9", size="pico", steps=8)
