"""The law's closed forms, the fitter on planted constants, the technique's plane of sizes and lengths, the study."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize_scalar
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from suite.record.job import canonical
from suite.record.schema import Counted, Evaluation, Learned
from suite.topics.studies.lab import StudyTable
from techniques.large_batch.chinchilla.law import (
    PUBLISHED,
    Law,
    _huber,
    bootstrap,
    fit,
    growth,
    growth_bootstrap,
    interval,
    isoflop,
)
from techniques.large_batch.chinchilla.study import (
    BUDGETS,
    COUNTED,
    SIX_N_D,
    WIDTHS,
    Minimum,
    Point,
    counted,
    optima,
    plot,
    point,
    study,
)
from techniques.large_batch.chinchilla.technique import widened
from tests import factories

PLANTED = Law(e=1.8, a=300.0, b=900.0, alpha=0.36, beta=0.31)
SIZES, TOKENS = np.geomspace(4e7, 1e10, 7), np.geomspace(1e9, 4e11, 7)
RUNS = np.array([(n, d) for n in SIZES for d in TOKENS])


def test_the_published_constants() -> None:
    assert PUBLISHED.size_exponent == pytest.approx(0.4516, abs=5e-5)
    assert PUBLISHED.token_exponent == pytest.approx(0.5484, abs=5e-5)
    assert PUBLISHED.loss(70e9, 1.4e12) == pytest.approx(1.937, abs=5e-4)
    assert PUBLISHED.loss(280e9, 300e9) == pytest.approx(1.993, abs=5e-4)


def test_the_published_constants_do_not_give_70_billion_or_20_tokens() -> None:
    parameters, tokens = PUBLISHED.optimum(5.76e23)
    assert parameters == pytest.approx(32.2e9, rel=2e-3)
    assert tokens / parameters == pytest.approx(93, abs=0.5)


@given(
    e=st.floats(0.1, 3),
    a=st.floats(10, 1e4),
    b=st.floats(10, 1e4),
    alpha=st.floats(0.1, 1),
    beta=st.floats(0.1, 1),
    flops=st.floats(1e18, 1e25),
)
@settings(max_examples=40, deadline=None)
def test_the_closed_form_is_the_minimum_at_its_compute(
    e: float, a: float, b: float, alpha: float, beta: float, flops: float
) -> None:
    law = Law(e, a, b, alpha, beta)
    parameters, tokens = law.optimum(flops)
    assert 6 * parameters * tokens == pytest.approx(flops)
    for factor in (0.99, 1.01):
        assert law.loss(parameters * factor, tokens / factor) >= law.loss(parameters, tokens)
    assert law.optimum(flops * 10)[0] / parameters == pytest.approx(10**law.size_exponent)


def test_the_fitter_recovers_planted_constants() -> None:
    found = fit(RUNS[:, 0], RUNS[:, 1], [PLANTED.loss(n, d) for n, d in RUNS])
    for name, value in PLANTED._asdict().items():
        assert getattr(found, name) == pytest.approx(value, rel=0.02), name


def test_one_run_far_off_moves_the_fit_little() -> None:
    """The point of Huber's loss: least squares would follow it."""
    losses = np.array([PLANTED.loss(n, d) for n, d in RUNS])
    losses[10] *= 1.5
    assert fit(RUNS[:, 0], RUNS[:, 1], losses).size_exponent == pytest.approx(PLANTED.size_exponent, rel=0.02)


def test_bootstrap_intervals_cover_the_truth_at_one_per_cent_of_noise() -> None:
    """Of four 95 % intervals two or more miss with a probability of 1.4 %."""
    covered = dict.fromkeys(("e", "alpha", "beta", "size_exponent"), 0)
    for seed in range(4):
        noise = np.random.default_rng(seed).standard_normal(len(RUNS))
        losses = [PLANTED.loss(n, d) * math.exp(0.01 * each) for (n, d), each in zip(RUNS, noise)]
        laws = bootstrap(RUNS[:, 0], RUNS[:, 1], losses, draws=30)
        for name in covered:
            low, high = interval([getattr(each, name) for each in laws])
            covered[name] += low <= getattr(PLANTED, name) <= high
            assert high - low < getattr(PLANTED, name)  # an interval that says something
    assert min(covered.values()) >= 3, covered


def test_the_gradient_is_that_of_the_objective() -> None:
    generator = np.random.default_rng(1)
    n, d, target = generator.normal(size=(3, 9))
    x = np.array([0.3, -0.2, 0.1, 0.4, 0.5])
    numerical = approx_fprime(x, lambda y: _huber(y, n, d, target)[0], 1e-7)
    assert _huber(x, n, d, target)[1] == pytest.approx(numerical, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(("sizes", "tokens"), [([1e6] * 9, range(1, 10)), (range(1, 10), [1e6] * 9), ([1, 2], [1, 2])])
def test_too_few_or_too_equal_runs_are_refused(sizes: list[float], tokens: list[float]) -> None:
    with pytest.raises(ValueError, match="do not determine"):
        fit(list(sizes), list(tokens), [2.0] * len(list(sizes)))


def test_parabola_has_its_minimum_where_it_was_planted() -> None:
    sizes = [1e5, 2e5, 5e5, 1e6]
    made = isoflop(sizes, [0.3 * (math.log(n) - math.log(3e5)) ** 2 + 2 for n in sizes])
    assert made is not None and made.optimum == pytest.approx(3e5)
    assert (made.curvature, made.at(3e5)) == (pytest.approx(0.3), pytest.approx(2.0))
    downwards = isoflop(sizes, [-((math.log(n) - 12) ** 2) for n in sizes])
    assert downwards is not None and downwards.optimum is None
    assert isoflop([1e5, 2e5, 2e5], [1, 2, 3]) is None


def test_isoflop_minima_of_the_law_grow_with_its_exponent() -> None:
    budgets = [1e20, 1e21, 1e22]
    optima = [
        math.exp(minimize_scalar(lambda x, c=c: PLANTED.loss(math.exp(x), c / 6 / math.exp(x)), bounds=(10, 30)).x)
        for c in budgets
    ]
    runs = {
        c: [(n, 0.3 * math.log(n / best) ** 2 + 2) for n in best * np.array([0.3, 0.8, 2.0, 5.0])]
        for c, best in zip(budgets, optima)
    }
    assert growth(runs) == pytest.approx(PLANTED.size_exponent, rel=1e-3)
    one_sided = [(n, loss) for n, loss in runs[1e22] if n > optima[2]]
    falling = [(n, -math.log(n)) for n, _ in runs[1e22]]
    for useless in (one_sided, [*one_sided, (9 * optima[2], 3.5)], falling):
        assert growth(runs | {1e23: useless}) == growth(runs), "only minima between the sizes run count"
    assert growth({1e20: runs[1e20], 1e21: falling}) is None


def test_intervals_of_the_growth_cover_the_truth() -> None:
    """Of ten 95 % intervals three or more miss with a probability of 1.2 %."""
    covered = 0
    for seed in range(10):
        generator, sizes = np.random.default_rng(seed), np.geomspace(0.1, 10, 5)
        noisy = {
            c: [(n * c**0.5, 0.1 * math.log(n) ** 2 + 0.02 * generator.standard_normal()) for n in sizes]
            for c in (1e12, 1e13, 1e14)
        }
        low, high = interval(growth_bootstrap(noisy, draws=40))
        covered += low <= 0.5 <= high
        assert 0 < high - low < 0.4
    assert covered >= 8


# the technique ------------------------------------------------------------------------------------------------------


def gpt() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4))


def blocks(model: nn.Module) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if ".h." in name and p.ndim == 2)


@pytest.mark.parametrize("width", [0.5, 0.75, 1.5, 2.0])
def test_matrices_of_the_blocks_grow_with_the_square_of_the_width(width: float) -> None:
    other = widened(gpt(), width)
    assert blocks(other) == width**2 * blocks(gpt())
    assert other.config.n_embd // other.config.n_head == 8
    assert other.config.n_layer == 2


def test_a_separate_width_of_the_mlp_follows() -> None:
    config = BertConfig(vocab_size=20, hidden_size=32, num_attention_heads=4, intermediate_size=96, num_hidden_layers=1)
    other = widened(BertModel(config), 0.5)
    assert (other.config.hidden_size, other.config.intermediate_size, other.config.num_attention_heads) == (16, 48, 2)
    assert config.hidden_size == 32


def test_widths_without_whole_heads_and_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="num_attention_heads"):
        widened(gpt(), 0.625)
    with pytest.raises(ValueError, match="Hugging Face"):
        widened(nn.Linear(3, 3), 0.5)


# the study ----------------------------------------------------------------------------------------------------------


EMBEDDING = 2e4


def imagined_lab(law: Law, finished: float | None = None) -> SimpleNamespace:
    """Runs that obey ``law``, of a reference with 200,000 parameters and 100,000 tokens; all or those of one budget."""

    def size(stack: str) -> tuple[float, float, float]:
        """The width, N and D."""
        width, compute = (
            float(found[1]) if (found := re.search(rf"{name}=([\d.]+)", stack)) else default
            for name, default in (("width", 0.5), ("compute", 1.0))
        )
        return width, 2e5 * width**2, 1e5 * compute / width**2

    def runs(stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        made = {}
        for stack in stacks:
            _, n, d = size(stack)
            probes = {"chinchilla.parameters": n, "chinchilla.tokens": d}
            each = factories.with_curve(stack, [Evaluation(step=10, loss=law.loss(n, d))], steps=10, probes=probes)
            budget = n * d / (2e5 * 1e5)
            made[canonical(stack)] = [(each, each)] * 2 if finished is None or math.isclose(finished, budget) else []
        return made

    def counts(stacks: list[str]) -> dict[str, Counted]:
        return {canonical(stack): counts_of(stack, *size(stack)) for stack in stacks}

    def counts_of(stack: str, width: float, n: float, d: float) -> Counted:
        every = n + EMBEDDING * width
        one = factories.counters(flops=round(0.6 * every * d), parameter_count=round(every))
        return factories.counted(stack, points=[one])

    return SimpleNamespace(runs=runs, counts=counts)


SMALL = Law(e=2.0, a=30.0, b=40.0, alpha=0.3, beta=0.3)


@pytest.fixture(scope="module")
def tables() -> list[StudyTable]:
    """What the study says of runs that obey SMALL."""
    return [*study(imagined_lab(SMALL))]  # type: ignore[arg-type]


def test_study_finds_the_law_behind_imagined_runs(tables: list[StudyTable]) -> None:
    runs, minima, law, published, verdicts = tables
    assert len(runs.rows) == len(BUDGETS) * len(WIDTHS)
    ours = [Minimum(*each) for each in minima.rows]
    for row in (each for each in ours if each.account == SIX_N_D):
        assert row.curvature is not None and row.curvature > 0
        best, tokens = SMALL.optimum(row.flops)
        assert (row.parameters, row.tokens) == (pytest.approx(best, rel=0.15), pytest.approx(tokens, rel=0.15))
        assert row.within == (1.25e4 <= (row.parameters or 0) <= 4.5e5)
    fitted = {name: rest for name, *rest in law.rows}
    assert fitted["size_exponent"][0] == pytest.approx(0.5, abs=0.01)
    value, low, high, _ = fitted[f"size_exponent of IsoFLOPs: {SIX_N_D}"]
    assert value == pytest.approx(0.5, abs=0.1) and low <= value <= high
    for budget in BUDGETS:
        flops = 6 * 2e5 * 1e5 * budget
        parameters, tokens = SMALL.optimum(flops)
        for name, expected in (("N", parameters), ("D", tokens), ("D/N", tokens / parameters)):
            optimum, low, high, _ = fitted[f"{name} at C = {flops:.3g}"]
            assert optimum == pytest.approx(expected, rel=0.05)
            assert low * (1 - 1e-9) <= optimum <= high * (1 + 1e-9)  # without noise it has hardly a width
    assert {name for name, *_ in published.rows} >= {"optimal parameters", "tokens a parameter"}
    told = {(statement, account): holds for statement, account, *_, holds in verdicts.rows}
    assert len(told) == 6 and told["the exponent lies within 0.3 and 0.7", SIX_N_D]
    assert told["every parabola has a minimum", SIX_N_D] and told["every parabola has a minimum", COUNTED]
    assert len(plot([runs]).axes[0].lines) >= 6


def test_the_second_account_is_at_equal_counted_operations(tables: list[StudyTable]) -> None:
    """Between runs that count 6 (N + embeddings) D, points of one budget do so too; none is extrapolated."""
    points = [Point(*each) for each in tables[0].rows]
    moved = counted(points)
    assert {each.budget for each in moved} == set(BUDGETS)
    for each in moved:
        assert 6 * each.parameters * each.tokens == pytest.approx(each.flops, rel=1e-4)
        assert each.flops == next(other.flops for other in moved if other.budget == each.budget)
        ends = [other.loss for other in points if other.width == each.width]
        assert min(ends) <= each.loss <= max(ends)
    assert len(moved) < len(points)
    assert counted([each._replace(counted_flops=None) for each in points]) == []


def test_a_law_without_an_optimum_is_not_a_number() -> None:
    assert np.isnan(optima([Law(1.0, 2.0, 3.0, -0.1, 0.3)], 1e20)).any()
    assert optima([PUBLISHED], 1e20)[:2, 0] == pytest.approx(PUBLISHED.optimum(1e20))


def test_study_says_nothing_of_what_was_not_measured() -> None:
    runs, minima, law, _, verdicts = study(imagined_lab(SMALL, finished=1.0))  # type: ignore[arg-type]
    assert {row[0] for row in runs.rows} == {1.0}
    assert Minimum(*minima.rows[0]).sizes == 5
    assert all(value is None for _, value, *_ in law.rows)
    assert [holds for *_, holds in verdicts.rows[:2]] == [None, None]
    assert point(1.0, 1.0, [], None) is None
