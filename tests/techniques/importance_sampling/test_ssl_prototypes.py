"""Self-supervised prototypes: classes that are balanced, the theory's perceptron, and the study."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from baselines.vit import Vit
from suite.reading.recording import with_few_examples
from techniques.importance_sampling.shared import pruning_study
from techniques.importance_sampling.ssl_prototypes import study
from techniques.importance_sampling.ssl_prototypes.perceptron import error, largest_margin, selection
from techniques.importance_sampling.ssl_prototypes.technique import SslPrototypes, balanced, without_labels
from tests.runs import new_run
from tests.techniques.importance_sampling.imagined import LOSSES, REFERENCE, imagined_lab


@given(seed=st.integers(0, 10_000), keep=st.floats(0.1, 1), balance=st.floats(0.05, 1))
@settings(max_examples=40, deadline=None)
def test_every_class_keeps_its_floor_and_the_rest_goes_to_the_highest(seed: int, keep: float, balance: float) -> None:
    random = torch.Generator().manual_seed(seed)
    ranking, classes = torch.rand(60, generator=random), torch.randint(3, (60,), generator=random)
    chosen = balanced(ranking, classes, keep, balance)
    assert len(chosen) == len(set(chosen.tolist())) == max(1, round(keep * 60))
    within = torch.zeros(60, dtype=torch.bool)
    within[chosen] = True
    for each in classes.unique():
        own = classes == each
        floor = int(balance * keep * int(own.sum()))
        assert int((own & within).sum()) >= floor
        if bool((own & within).any()) and bool((own & ~within).any()):  # in a class none is passed over
            assert ranking[own & within].min() >= ranking[own & ~within].max()


def test_without_a_floor_hard_examples_may_leave_a_class_out() -> None:
    ranking, classes = torch.arange(10.0), torch.tensor([0] * 5 + [1] * 5)
    assert balanced(ranking, classes, 0.4, 0.5).tolist() == [4, 7, 8, 9]


def test_examples_without_classes_cannot_be_balanced() -> None:
    run = new_run("bert", size="pico", steps=8)
    with pytest.raises(ValueError, match="no classes to balance"):
        SslPrototypes(balance=0.5).chosen(torch.rand(4), run.data)
    assert without_labels(Vit(), new_run("vit", size="pico").data).id == "vit"


# the theory ---------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_the_margin_is_the_largest(seed: int) -> None:
    """Against a general solver: min ||w||^2 under y <w, x> >= 1."""
    random = np.random.default_rng(seed)
    inputs, teacher = random.standard_normal((12, 4)), random.standard_normal(4)
    signed = np.sign(inputs @ teacher)[:, None] * inputs
    ours = largest_margin(inputs, np.sign(inputs @ teacher))
    constraint = {"type": "ineq", "fun": lambda w: signed @ w - 1, "jac": lambda w: signed}
    start = teacher / (signed @ teacher).min()
    theirs = minimize(lambda w: w @ w, start, jac=lambda w: 2 * w, constraints=[constraint], method="SLSQP")
    assert np.linalg.norm(ours) == pytest.approx(1)
    assert (signed @ ours).min() >= (signed @ theirs.x).min() / np.linalg.norm(theirs.x) * (1 - 1e-6)


def test_what_cannot_be_separated_is_refused() -> None:
    inputs = np.array([[1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match="no hyperplane"):
        largest_margin(inputs, np.array([1.0, -1.0]))


def test_small_margins_are_hard() -> None:
    margins, random = np.array([0.3, 0.1, 0.4, 0.2]), np.random.default_rng(0)
    assert sorted(selection(margins, 0.5, "hard", random)) == [1, 3]
    assert sorted(selection(margins, 0.5, "easy", random)) == [0, 2]
    assert len(selection(margins, 0.5, "random", random)) == 2


SEEN = {  # easy and random examples, as an independent calculation has them (60 dimensions, a fifth kept, 4 seeds)
    1.0: (0.284, 0.388),
    10.0: (0.080, 0.185),
    30.0: (0.034, 0.076),
    60.0: (0.017, 0.042),
}


def test_easy_examples_win_where_data_is_scarce_and_hard_ones_where_it_is_abundant() -> None:
    means = {
        alpha: {order: fmean(error(60, alpha, 0.2, order, seed) for seed in range(4)) for order in pruning_study.ORDERS}
        for alpha in SEEN
    }
    orders = {alpha: sorted(errors, key=lambda order: errors[order]) for alpha, errors in means.items()}
    assert orders[1.0] == ["easy", "random", "hard"]
    assert orders[10.0] == ["easy", "hard", "random"]
    assert orders[30.0] == orders[60.0] == ["hard", "easy", "random"]
    for alpha, seen in SEEN.items():
        assert (means[alpha]["easy"], means[alpha]["random"]) == pytest.approx(seen, rel=0.15)


def test_study_has_the_theory_and_the_baseline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    for name, value in {
        "DIMENSIONS": 20,
        "ALPHAS": (2.0, 8.0),
        "KEEPS": (0.25, 1.0),
        "SHARES": (0.5, 1.0),
        "KEPT": (0.5,),
    }.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(pruning_study, "baseline_of", lambda setting: with_few_examples(Vit(), 24))
    lab = imagined_lab(new_run("vit", size="pico", steps=4).job.setting, tmp_path)
    theory, frontier, crossover = study.study(lab)
    assert [row[:3] for row in theory.rows[:4]] == [
        (2.0, 0.25, "hard"),
        (2.0, 0.25, "easy"),
        (2.0, 0.25, "random"),
        (2.0, 1.0, "random"),
    ]
    errors = {row[:3]: row[4] for row in theory.rows}
    best = min((errors[8.0, 0.25, "hard"], 0.25), (errors[2.0, 1.0, "random"], 1.0))
    assert frontier.rows[0] == (2.0, best[1], best[0], None, errors[2.0, 1.0, "random"], None)
    assert frontier.rows[1][:3] == (8.0, 1.0, errors[8.0, 1.0, "random"])
    assert frontier.rows[1][3] < 0
    rows = [pruning_study.KeptRow(*row) for row in crossover.rows]
    assert [(row.examples, row.order, row.loss) for row in rows] == [
        (count, order, {**LOSSES, "all": REFERENCE}[order]) for count in (12, 24) for order in ("all", *LOSSES)
    ]
    assert len(study.plot([theory, frontier, crossover]).axes) == 3


def test_a_power_law_has_its_power() -> None:
    assert study.power(2.0, 0.3 * 2**-1.5, 8.0, 0.3 * 8**-1.5) == pytest.approx(-1.5)
