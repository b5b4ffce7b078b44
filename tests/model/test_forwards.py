"""Stand-ins for a module's forward: they nest, leave in any order, reach compiled modules, and leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.model.forwards import Forward, StandIn, standing_in


def times(factor: float) -> Callable[[Forward], Forward]:
    return lambda before: lambda x: factor * before(x)


def own_forward() -> nn.Module:
    module = nn.Identity()
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def compiled() -> nn.Module:
    module = nn.Identity()
    module.compile(backend="eager")
    module(torch.ones(1))
    return module


@pytest.mark.parametrize("made", [nn.Identity, own_forward, compiled])
@pytest.mark.parametrize("order", permutations(range(3)))
def test_stand_ins_leave_in_any_order_and_the_module_is_as_it_was(
    made: Callable[[], nn.Module], order: tuple[int, ...]
) -> None:
    module, factors, one = made(), [2.0, 3.0, 5.0], torch.ones(1)
    before = dict(vars(module))
    stand_ins = [StandIn(module, times(factor)) for factor in factors]
    assert module(one) == 30
    for number in order:
        stand_ins[number].remove()
        factors[number] = 1.0
        assert module(one) == torch.tensor(factors).prod()
    assert vars(module) == before


def test_an_exception_leaves_no_trace() -> None:
    module = nn.Identity()

    def fails(before: Forward) -> Forward:
        raise KeyError

    with pytest.raises(KeyError), standing_in(module, fails):
        pass
    with pytest.raises(KeyError), standing_in(module, times(2)), standing_in(module, times(3)):
        raise KeyError
    assert "forward" not in vars(module)


def test_what_somebody_else_puts_around_a_stand_in_stays_and_reaches_the_module() -> None:
    module, one = nn.Identity(), torch.ones(1)
    stand_in = StandIn(module, times(2))
    inner = module.forward

    def around(x: Tensor) -> Any:
        return 7 * inner(x)

    module.forward = around  # type: ignore[method-assign]
    assert module(one) == 14
    stand_in.remove()
    assert module(one) == 7 and module.forward is around


def test_a_compiled_model_sees_a_stand_in_inside_come_and_go() -> None:
    inner, one = nn.Identity(), torch.ones(1)
    torch._dynamo.reset()
    whole = torch.compile(nn.Sequential(inner), backend="eager", fullgraph=True)
    seen = [whole(one).item()]
    for factor in (2, 3):
        with standing_in(inner, times(factor)):
            seen.append(whole(one).item())
        seen.append(whole(one).item())
    assert seen == [1, 2, 1, 3, 1]
