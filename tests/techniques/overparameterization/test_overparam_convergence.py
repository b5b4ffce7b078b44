"""Wider MLPs on the baselines, and the theory's predictions in its own setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from techniques.overparameterization.overparam_convergence import study
from techniques.overparameterization.shared.width import distances


def test_the_distance_is_relative_to_the_start() -> None:
    start = {"w": torch.tensor([[3.0, 4.0]]), "v": torch.ones(2, 2)}
    now = {"w": torch.tensor([[3.0, 5.0]]), "v": torch.ones(2, 2)}
    assert {name: float(each) for name, each in distances(now, start).items()} == {"w": pytest.approx(0.2), "v": 0.0}


# the study ----------------------------------------------------------------------------------------------------------


def test_a_step_is_autograds() -> None:
    problem = study.problem(0)
    training = study.train(problem, 32, seed=0, most=1)
    random = study.generator(0, 1)
    weights = torch.randn(32, study.DIMENSIONS, generator=random, dtype=torch.float64).requires_grad_()
    signs = (torch.randint(2, (32,), generator=random).double() * 2 - 1) / 32**0.5
    loss = ((problem.inputs @ weights.T).relu() @ signs - problem.labels).square().mean() / 2
    (gradient,) = torch.autograd.grad(loss, weights)
    after = (weights - problem.rate * gradient).detach()
    second = ((problem.inputs @ after.T).relu() @ signs - problem.labels).square().mean() / 2
    assert training.losses == pytest.approx([loss.item(), second.item()])
    assert training.relative_distance == pytest.approx(((after - weights).norm() / weights.norm()).item())


def test_wider_networks_need_no_more_steps_and_move_less() -> None:
    runs = {width: [study.train(study.problem(0), width, 0)] for width in (64, 256, 1024)}
    rows = study.of_width(runs).rows
    assert [row[1] for row in rows] == [1, 1, 1]
    assert [row[2] for row in rows] == sorted((row[2] for row in rows), reverse=True)
    assert min(row[5] for row in rows) > 0.98
    measured = {name: slope for name, _, slope in study.slopes(runs).rows}
    assert measured["relative_distance"] == pytest.approx(-0.5, abs=0.1)
    assert measured["flipped"] == pytest.approx(-0.5, abs=0.1)
    tables = [study.of_width(runs), study.curves(runs)]
    assert [len(axes.lines) for axes in study.plot(tables).axes] == [3, 4]


def test_duplicates_with_opposite_labels_leave_the_least_possible_loss(monkeypatch: Any) -> None:
    monkeypatch.setattr(study, "DUPLICATED_STEPS", 200)
    monkeypatch.setattr(study, "DUPLICATED_WIDTH", 256)
    for _, least, loss in study.duplicates([0]).rows:
        assert least <= loss < 1.05 * least
    problem = study.problem(0, pairs=4)
    assert torch.equal(problem.inputs[:4], problem.inputs[4:8])
    assert torch.equal(problem.labels[:4], -problem.labels[4:8])


def test_a_line_in_logarithms_is_straight() -> None:
    assert study.straight([0.9**step for step in range(50)]) == pytest.approx(1)
