"""The runtime against the authors' simulator on linear nets, and its play over chains against every schedule."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.chain.chain import Chain, Stage
from suite.chain.exhaustive import fastest
from suite.chain.plan import Infeasible, least, unplanned
from suite.chain.simulate import predicted
from techniques.rematerialization.dtr.runtime import (
    Name,
    Operator,
    OutOfMemory,
    Runtime,
    Tensor,
    after,
    around,
    before,
)
from techniques.rematerialization.dtr.solver import played
from tests.chain.chains import chains

AGAIN = {  # operators run again, of each layer of a linear net in ceil(2 sqrt(N)) units: simrd's own figures
    64: {"dtr": 0.77, "eq": 0.77, "msps": 0.94, "local": 2.52, "lru": 2.52, "size": 19.1},
    256: {"dtr": 0.90, "eq": 0.90, "msps": 1.19, "local": 7.74, "lru": 7.74},
}


def made(runtime: Runtime, *inputs: Tensor, nbytes: int = 1, seconds: float = 1.0) -> Tensor:
    operator = Operator("any", seconds, nbytes, inputs)
    tensor = Tensor(nbytes, operator)
    runtime.run(operator, [tensor])
    return tensor


def again(layers: int, heuristic: Name) -> float:
    """Runs beyond the first of each layer of a linear net, forwards and back."""
    ran: list[Operator] = []
    runtime = Runtime(math.ceil(2 * math.sqrt(layers)), heuristic, ran.append)
    outputs = [made(runtime)]
    for _ in range(layers - 1):
        outputs.append(made(runtime, outputs[-1]))
    runtime.release(outputs[-1])
    gradient = made(runtime)
    for layer in reversed(range(layers - 1)):
        runtime.release(outputs[layer])
        former, gradient = gradient, made(runtime, *outputs[max(0, layer - 1) : layer], gradient)
        runtime.release(former)
    assert runtime.high_bytes <= runtime.budget_bytes
    return len(ran) / layers - 2


@pytest.mark.parametrize(
    ("layers", "heuristic", "expected"),
    [(layers, heuristic, value) for layers, row in AGAIN.items() for heuristic, value in row.items()],
)
def test_linear_nets_run_again_as_often_as_in_the_authors_simulator(
    layers: int, heuristic: Name, expected: float
) -> None:
    assert again(layers, heuristic) == pytest.approx(expected, abs=0.05 if expected > 10 else 0.006)


@settings(max_examples=40, deadline=None)
@given(chains(most=4, any_ends=True), st.floats(0, 1.1), st.sampled_from(get_args(Name)))
def test_a_play_fits_its_budget_and_is_no_faster_than_the_optimum(
    chain: Chain, of_the_way: float, heuristic: Name
) -> None:
    low, high = least([chain]).peak_bytes, unplanned([chain]).peak_bytes
    budget_bytes = max(chain.outside_bytes, low + int(of_the_way * (high - low)))
    try:
        cost = predicted(played(chain, budget_bytes, heuristic), chain)
    except Infeasible as error:
        budget_bytes = max(error.least_bytes, budget_bytes + 1)
        cost = predicted(played(chain, error.least_bytes, heuristic), chain)
    assert cost.peak_bytes <= budget_bytes
    assert cost.time_s >= fastest(chain, budget_bytes) * (1 - 1e-12)


def test_with_room_for_all_nothing_runs_again() -> None:
    chain = Chain((Stage(1.0, 1.0, 2.0, 10, (20, 40), 30, 80, 40, gradient_bytes=5),) * 48, 10, turn_s=1.0)
    assert played(chain, 2 * unplanned([chain]).peak_bytes).extra_forwards == 0


def test_the_neighbourhood_is_what_is_evicted_before_and_after_and_classes_estimate_it() -> None:
    """a0 - a1 - a2 - a3 - a4, of which a1 and a3 are evicted; then a2, which joins them."""
    runtime = Runtime(100, "eq")
    a = [made(runtime, seconds=1.0)]
    for seconds in (2.0, 4.0, 8.0, 16.0):
        a.append(made(runtime, a[-1], seconds=seconds))
    for each in (a[1], a[3]):
        runtime.release(each)
    assert [(before(each), after(each), around(each)) for each in (a[0], a[2], a[4])] == [
        (0, 2, 2),
        (2, 8, 10),
        (8, 0, 8),
    ]
    runtime.release(a[2])
    assert (before(a[4]), around(a[4]), after(a[0])) == (14, 14, 14)
    made(runtime, a[3])  # which brings all of them back
    assert all(each.there for each in a)
    assert around(a[4]) == 0


def test_locked_and_held_tensors_stay_and_constants_do_for_ever() -> None:
    runtime = Runtime(4, "dtr")
    constant = runtime.constant(1)
    inner = made(runtime, constant)
    operator = Operator("holding", 1.0, 1, (inner,))
    holder = Tensor(1, operator, holds=(inner,))
    runtime.run(operator, [holder])
    made(runtime, holder, nbytes=1)
    made(runtime, nbytes=1)
    assert constant.there and (inner.there or not holder.there)
    with pytest.raises(OutOfMemory, match="do not fit in 4"):
        made(runtime, constant, nbytes=4)
