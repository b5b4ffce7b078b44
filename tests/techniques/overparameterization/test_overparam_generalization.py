"""The ball around the start against its definition, and the theory's predictions in its own setting."""

from __future__ import annotations

import pytest
import torch

from techniques.overparameterization.overparam_generalization import study
from techniques.overparameterization.overparam_generalization.technique import stay_near


def test_a_weight_that_did_not_move_stays() -> None:
    start = torch.randn(3, 3)
    for weight in (start.clone(), torch.zeros(3, 3)):
        stay_near(weight, weight.clone(), 0.5)
        assert weight.isfinite().all()


# the study ----------------------------------------------------------------------------------------------------------


def test_gradients_are_autograds() -> None:
    random = torch.Generator().manual_seed(0)
    weights = [torch.randn(8, size, generator=random, dtype=torch.float64).requires_grad_() for size in (5, 8)]
    signs, inputs, targets = (torch.randn(*shape, generator=random).double() for shape in ((8,), (20, 5), (20,)))
    loss = (study.output(weights, signs, inputs) - targets).square().mean() / 2
    expected = torch.autograd.grad(loss, weights)
    plain = [each.detach() for each in weights]
    for ours, theirs in zip(study.gradients(plain, signs, inputs, targets), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_training_learns_and_wider_networks_stay_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {width: [study.train(study.problem(0), width, 0, steps=300)] for width in (16, 128)}
    small, large = (runs[width][0] for width in runs)
    assert max(small.test, large.test) < 0.6
    assert large.distance_of_a < small.distance_of_a and large.distance_of_b < small.distance_of_b
    monkeypatch.setattr(study, "FEATURES", (16, 256))
    tables = [study.risks(runs), study.subnetworks([0])]
    assert [len(axes.lines) for axes in study.plot(tables).axes] == [5, 3]
    (_, _, *of_few), (_, _, *of_many) = tables[1].rows
    assert of_many[0] < 0.5 * of_few[0] and of_many[1] < 0.5 * of_few[1]


def test_the_search_is_orthogonal_matching_pursuit() -> None:
    """On orthogonal columns the largest projections, in their order; all columns give the least squares' error."""
    random = torch.Generator().manual_seed(0)
    columns = torch.linalg.qr(torch.randn(30, 10, generator=random, dtype=torch.float64))[0]
    targets = columns @ torch.arange(10).double()
    assert study.greedy(columns, targets, 3) == [9, 8, 7]
    assert sorted(study.greedy(columns, targets, 20)) == list(range(10))


def test_every_example_comes_once_an_epoch() -> None:
    seen = torch.cat(list(study.batches(80, 4, torch.Generator().manual_seed(0))))
    assert sorted(seen[:80].tolist()) == sorted(seen[80:].tolist()) == list(range(80))
