"""The Walsh-Hadamard transform against its matrix, what is saved, and the study."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from suite.loop.data import generator
from suite.loop.run import Run
from techniques.fine_tuning.intrinsic_dim import study
from techniques.fine_tuning.intrinsic_dim.hadamard import walsh_hadamard
from tests.runs import new_run


def hadamard(n: int) -> Tensor:
    """Sylvester's matrix by its entries: the sign of the parity of the bits that row and column share."""
    parity = [[(row & column).bit_count() % 2 for column in range(n)] for row in range(n)]
    return 1.0 - 2.0 * torch.tensor(parity, dtype=torch.float64)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(shape[-1]), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 256])
def test_the_transform_is_the_product_with_the_matrix(n: int) -> None:
    x = drawn(3, 2, n)
    torch.testing.assert_close(walsh_hadamard(x), x @ hadamard(n), rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(walsh_hadamard(walsh_hadamard(x)), n * x, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("n", [0, 3, 12])
def test_other_sizes_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"a power of 2 numbers, not {n}"):
        walsh_hadamard(torch.zeros(2, n))


def adapting(baseline: str, steps: int = 4, **options: Any) -> Run:
    spelled = ",".join(f"{key}={value}" for key, value in options.items())
    stack = f"intrinsic_dim:{spelled}" if spelled else "intrinsic_dim"
    return new_run(baseline, stack, size="pico", recipe="classic", task="adapt", steps=steps)


def test_its_state_holds_no_projection() -> None:
    state = adapting("vit", dimension=60).model.state_dict()
    assert not any(name.endswith(("signs", "places", "gains")) for name in state)


@pytest.mark.parametrize(("start", "least"), [(0.05, (1000, None)), (0.9, (0, 0))])
def test_the_study_has_the_smallest_dimension_that_is_enough(start: float, least: tuple[int | None, ...]) -> None:
    """Of accuracies that grow with d: to 0.85 of full fine-tuning's 0.8 at 300, and 0.95 of it at 1000."""
    shares = dict(zip(study.DIMENSIONS, (0.1, 0.3, 0.6, 0.85, 0.95, 1.0), strict=True))

    def runs(stacks: list[str]) -> dict[str, list[Any]]:
        curve = [SimpleNamespace(loss=2.0, metrics={"accuracy": each}) for each in (0.7 * start, 0.4, 0.7)]
        end = SimpleNamespace(loss=0.5, metrics={"accuracy": 0.8})
        fulls = [SimpleNamespace(final=end, curve=curve, seed=seed) for seed in (0, 1)]
        ends = {}
        for stack in stacks:
            dimension = next((d for d in study.DIMENSIONS if f"dimension={d}," in f"{stack},"), 1000)  # the default
            own = SimpleNamespace(final=SimpleNamespace(loss=1.0, metrics={"accuracy": 0.8 * shares[dimension]}))
            ends[stack] = [] if "=false" in stack and dimension > 300 else [(full, own) for full in fulls]
        return ends

    tables = study.study(SimpleNamespace(runs=runs))  # type: ignore[arg-type]
    before, *points = [study.Point(*each) for each in tables[0].rows]
    assert before == study.Point("before", 0, 2, 2.0, pytest.approx(0.7 * start), pytest.approx(start))
    assert [each.dimension for each in points if each.method == "SAID"] == list(study.DIMENSIONS)
    assert {each.seeds for each in points} == {2}
    assert points[0].share == pytest.approx(0.1) and points[0].accuracy == pytest.approx(0.08)
    assert tables[1].rows == list(zip(("SAID", "DID"), least, strict=True))
    assert len(study.plot(tables).axes[0].lines) == 4
