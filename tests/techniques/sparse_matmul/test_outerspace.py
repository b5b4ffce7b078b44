"""OuterSPACE's order on layers, its traffic against a sum over accesses, and the bound beside the reported times."""

import pytest
import torch

from techniques.sparse_matmul.outerspace.probes import REPORTED
from techniques.sparse_matmul.outerspace.study import study
from techniques.sparse_matmul.outerspace.traffic import bound_s, outer_pays, traffic_bytes, uniform
from techniques.sparse_matmul.shared.dataflows import gustavson, in_rows, outer, rows_of
from techniques.sparse_matmul.shared.pruned_products import by_outer_products


def matrix(n: int, m: int, density: float, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(n, m, generator=random, dtype=torch.float64)
    return values * (torch.rand(n, m, generator=random) < density)


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_outer_products_of_columns_and_dense_rows_are_the_product(density):
    a, x = matrix(7, 5, density, 0), matrix(5, 3, 1.0, 1)
    torch.testing.assert_close(by_outer_products(in_rows(a), x), a @ x)


def test_the_traffic_is_that_of_the_counted_accesses():
    a, b = matrix(20, 20, 0.2, 2), matrix(20, 20, 0.3, 3)
    made, other = outer(rows_of(a), rows_of(b)), gustavson(rows_of(a), rows_of(b))
    entries = int((a != 0).sum()), int((b != 0).sum())
    result = sum(map(len, made.rows))
    elements = made.counts.read + 2 * made.counts.stored + result  # read, written and read, written
    pointers = 3 * 21 + 2 * entries[0]
    assert traffic_bytes(20, *entries, made.counts.stored, result) == 12 * elements + 4 * pointers
    assert not outer_pays(made.counts.stored, other.counts.read - entries[0])


def test_a_uniform_square_has_these_entries_on_average():
    entries, products, result = uniform(300, 0.02)
    drawn = [matrix(300, 300, 0.02, seed) for seed in range(4)]
    made = [outer(rows_of(each), rows_of(each)) for each in drawn[:2]]
    assert sum(int((each != 0).sum()) for each in drawn) / 4 == pytest.approx(entries, rel=0.05)
    assert sum(each.counts.stored for each in made) / 2 == pytest.approx(products, rel=0.1)
    assert sum(sum(map(len, each.rows)) for each in made) / 2 == pytest.approx(result, rel=0.1)
    assert uniform(5, 1.0) == (25, 125, 25)
    with pytest.raises(ValueError, match=r"in \(0, 1\], not 0"):
        uniform(5, 0.0)


def test_the_bound_is_below_every_reported_time_and_is_teaals_but_for_one():
    teaal = (2.036e-3, 0.731e-3, 0.570e-3, 0.335e-3, 0.184e-3)
    ratios = [bound_s(rows, density) / other for (rows, density, _), other in zip(REPORTED, teaal, strict=True)]
    assert all(abs(ratio - 1) < 0.02 for place, ratio in enumerate(ratios) if place != 1)
    assert ratios[1] == pytest.approx(1.48, abs=0.01)  # theirs counts writing products there, and not reading them
    gaps = [seconds / bound_s(rows, density) for rows, density, seconds in REPORTED]
    assert min(gaps) == pytest.approx(3.37, abs=0.01) and max(gaps) == pytest.approx(9.51, abs=0.01)


def test_the_study_needs_no_run(monkeypatch):
    small = [(60, 0.05, 1e-3), *REPORTED[1:]]
    monkeypatch.setattr("techniques.sparse_matmul.outerspace.study.REPORTED", small)

    class Place:
        def progress(self, share: float, what: str) -> None:
            assert share == 0.0 and what

    headlines, numbers, bound, traffic = study(Place())  # type: ignore[arg-type]
    for claim, quoted, modelled, least, most, measured, *_ in headlines.rows:
        assert quoted in (7.9, 13.0, 14.0) and least <= modelled <= most < quoted  # bandwidths alone reach none of them
        assert (measured is not None) == (claim == "against_mkl")
    kinds = [row[0] for row in numbers.rows]
    assert kinds == ["literature"] * 3 + ["modelled"] * 5 + ["measured"] * 3
    for row in numbers.rows:  # every product goes to memory and comes back: half of what is moved, and pointers less
        assert row[0] != "modelled" or 0.4 < row[3] < 1
    assert [row[3] for row in numbers.rows if row[1] == "scipy"] == [1.0]
    assert len(bound.rows) == 5 and all(row[-1] > 1 for row in bound.rows)
    assert all(sum(row[2:]) <= 1 for row in traffic.rows)
