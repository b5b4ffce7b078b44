"""The classical methods, against their formulas written out plainly."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baselines.classical import (
    DISCOUNT,
    NEVER,
    PRIOR_COUNTS,
    STRENGTHS,
    KneserNey,
    LogisticRegression,
    Neighbours,
    PrincipalComponents,
    Unigram,
    grey_pixels,
    nearest_neighbours,
)
from baselines.text import CHARACTERS
from suite.entries.installed import baselines

VOCABULARY = 5
MASK = 1
ROWS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=6, max_size=6), min_size=1, max_size=6)


def kneser_ney(rows: list[list[int]], context: tuple[int, ...], token: int, order: int) -> float:
    """P(token | context), by the recursion with absolute discounting; shorter contexts count distinct predecessors."""
    grams = Counter(tuple(row[i : i + order]) for row in rows for i in range(len(row) - order + 1))
    probability = 1 / VOCABULARY
    for length in range(len(context) + 1):
        counts = grams
        for _ in range(order - 1 - length):
            counts = Counter(gram[1:] for gram in counts)
        after = {gram[-1]: n for gram, n in counts.items() if gram[:-1] == context[len(context) - length :]}
        if total := sum(after.values()):
            given_away = DISCOUNT * len(after)
            probability = (max(after.get(token, 0) - DISCOUNT, 0) + given_away * probability) / total
    return probability


@pytest.mark.parametrize("order", [2, 3, 4])
@given(rows=ROWS, row=st.lists(st.integers(0, VOCABULARY - 1), min_size=4, max_size=4))
def test_kneser_ney_is_interpolated(order: int, rows: list[list[int]], row: list[int]) -> None:
    logits = KneserNey(torch.tensor(rows), VOCABULARY, order)({"input_ids": torch.tensor([row])}).logits[0]
    assert logits.exp().sum(-1) == pytest.approx(np.ones(4))
    for position in range(4):
        context = tuple(row[max(0, position + 2 - order) : position + 1])
        for token in range(VOCABULARY):
            assert math.exp(logits[position, token]) == pytest.approx(kneser_ney(rows, context, token, order))


@given(ROWS, st.lists(st.integers(0, VOCABULARY - 1), min_size=4, max_size=4))
def test_neighbours_are_smoothed_by_their_product_and_a_masked_one_is_left_out(
    rows: list[list[int]], row: list[int]
) -> None:
    alone = np.array([Counter(token for each in rows for token in each)[w] + 1 for w in range(VOCABULARY)], float)
    alone /= alone.sum()

    def smoothed(counts: list[int], prior: np.ndarray) -> np.ndarray:
        return (np.array(counts) + PRIOR_COUNTS * prior) / (sum(counts) + PRIOR_COUNTS)

    triples = [tuple(each[i : i + 3]) for each in rows for i in range(len(each) - 2)]
    logits = Neighbours(torch.tensor(rows), VOCABULARY, MASK)({"input_ids": torch.tensor([row])}).logits[0]
    for position in range(4):
        left = row[position - 1] if position else MASK
        right = row[position + 1] if position < 3 else MASK
        by_left = by_right = alone
        if left != MASK:
            by_left = smoothed([sum(t[:2] == (left, w) for t in triples) for w in range(VOCABULARY)], alone)
        if right != MASK:
            by_right = smoothed([sum(t[1:] == (w, right) for t in triples) for w in range(VOCABULARY)], alone)
        expected = by_left * by_right / alone
        expected /= expected.sum()
        if MASK not in (left, right):
            expected = smoothed([triples.count((left, w, right)) for w in range(VOCABULARY)], expected)
        assert logits[position].exp().numpy() == pytest.approx(expected)


def test_token_frequencies_are_those_of_the_rows() -> None:
    logits = Unigram(torch.tensor([[0, 0, 2], [2, 2, 3]]), 4)(
        {"input_ids": torch.zeros(1, 2, dtype=torch.int64)}
    ).logits
    assert logits.shape == (1, 2, 4)
    assert logits[0, 1].exp().tolist() == pytest.approx([0.3, 0.1, 0.4, 0.2])


def test_principal_components_complete_what_lies_in_their_span() -> None:
    random = torch.Generator().manual_seed(0)
    span = torch.randn(3, 40, generator=random, dtype=torch.float64)
    pictures = torch.randn(200, 3, generator=random, dtype=torch.float64) @ span + 1.0
    parts = PrincipalComponents(pictures)
    visible = (torch.rand(5, 40, generator=random) < 0.5).double()
    assert torch.allclose(parts.completing(3)(pictures[:5], visible), pictures[:5], atol=1e-3)
    assert not torch.allclose(parts.completing(2)(pictures[:5], visible), pictures[:5], atol=0.1)
    mean = pictures.mean(0).expand(5, -1)
    assert torch.allclose(parts.completing(3)(pictures[:5], torch.zeros(5, 40)), mean)
    assert torch.allclose(parts.completing(0)(pictures[:5], visible), mean), "the mean picture"


def test_all_principal_components_are_linear_regression_of_the_hidden_on_the_visible() -> None:
    random = torch.Generator().manual_seed(0)
    pictures = torch.randn(300, 6, generator=random).double() @ torch.randn(6, 6, generator=random).double()
    visible = torch.tensor([1.0, 0, 1, 1, 0, 1])
    completed = PrincipalComponents(pictures).completing(6, 1e-9)(pictures[:4], visible.expand(4, -1))
    shown = torch.cat([pictures[:, visible > 0], torch.ones(300, 1)], dim=1)
    coefficients = torch.linalg.lstsq(shown, pictures[:, visible == 0]).solution
    torch.testing.assert_close(completed[:, visible == 0], shown[:4] @ coefficients, rtol=1e-5, atol=1e-5)


def test_nearest_neighbours_are_nearest_in_what_is_visible() -> None:
    random = torch.Generator().manual_seed(0)
    known, picture = torch.rand(50, 1, 3, 3, generator=random), torch.rand(2, 9, generator=random)
    visible = torch.tensor([[1.0] * 4 + [0.0] * 5, [0.0] * 6 + [1.0] * 3])
    completed = nearest_neighbours(known, 3)(picture, visible)
    for row in range(2):
        distances = [sum(visible[row] * (each.flatten() - picture[row]) ** 2) for each in known]
        nearest = sorted(range(50), key=distances.__getitem__)[:3]
        torch.testing.assert_close(completed[row], known[nearest].double().mean(0).flatten())


def striped(labels: torch.Tensor, noise: float) -> dict[str, torch.Tensor]:
    """Pictures as bright as their label says."""
    pixels = noise * torch.randn(len(labels), 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return {"pixel_values": pixels + labels.view(-1, 1, 1, 1), "labels": labels}


def test_logistic_regression_never_says_a_class_that_it_has_not_seen() -> None:
    batch = striped(torch.tensor([0, 2] * 30), 0.1)
    logits = LogisticRegression(grey_pixels, batch, batch)(batch).logits
    assert logits.shape == (60, 3)
    assert (logits[:, 1] == NEVER).all()
    assert (logits.argmax(1) == batch["labels"]).all()


def test_validation_chooses_the_strength_of_logistic_regression() -> None:
    """Labels that are right everywhere want a weak penalty; where validation contradicts them, a strong one is best."""
    labels = torch.tensor([0, 1] * 30)
    training = striped(labels, 1.0)
    kept = LogisticRegression(grey_pixels, training, training).fit.C
    opposed = LogisticRegression(grey_pixels, training, {**training, "labels": 1 - labels}).fit.C
    assert (kept, opposed) == (max(STRENGTHS), min(STRENGTHS))


@pytest.mark.parametrize("name", baselines())
def test_every_baseline_has_a_classical_method_that_learns(name: str) -> None:
    """Better than no knowledge: than all tokens or classes as likely, than the mean patch."""
    baseline = baselines()[name]
    data = baseline.data("pico", "pretrain")
    ignorant = {"bert": math.log(CHARACTERS), "gpt": math.log(CHARACTERS), "vit": math.log(10), "mae": 1.0}[name]
    methods = baseline.classical("pico", data)
    assert methods
    for predict in methods.values():
        scores = baseline.mean_scores(predict, data.held_out("test", 4))
        assert 0 < scores["loss"] < 0.9 * ignorant
        assert baseline.mean_scores(predict, data.held_out("test", 4)) == scores
