"""Random masking, by torch's operators and by the kernel (here under the interpreter), against float64 and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.kernels import gates
from techniques.token_masking.shared import kept
from techniques.token_masking.shared.kept import KeptTokens, kept_indices, kept_tokens
from tests.kernels import compiled

kept_kernel = pytest.importorskip("techniques.token_masking.shared.kept_kernel")  # not every platform has Triton
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16


def drawn(batch: int, tokens: int, leading: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and noise, in which values come several times."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(max(2, tokens), (batch, tokens), generator=generator) / tokens
    total = leading + tokens
    return (
        torch.randn(batch, total, width, generator=generator),
        torch.randn(total, width, generator=generator),
        noise,
    )


def by_hand(tokens: Tensor, positions: Tensor | None, noise: Tensor, places: range, leading: int) -> Tensor:
    """Python's stable sort, row by row, in float64 with gradients."""
    rows = []
    for example, values in enumerate(noise.tolist()):
        order = sorted(range(len(values)), key=lambda index: values[index])
        index = [*range(leading), *(leading + order[place] for place in places)]
        row = tokens[example, index].double()
        rows.append(row if positions is None else row + positions[index].double())
    return torch.stack(rows)


def check(ours: Tensor, theirs: Tensor, of_ours: tuple[Tensor, ...], of_theirs: tuple[Tensor, ...]) -> None:
    tolerance = 4 * torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    for one, other in zip(of_ours, of_theirs, strict=True):
        tolerance = 16 * torch.finfo(one.dtype).eps
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("launched", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize(
    ("dtypes", "batch", "tokens", "leading", "width", "places"),
    [
        ((F32, F32), 3, 67, 0, 33, range(16, 67)),
        ((F32, F32), 17, 5, 2, 130, range(2, 4)),
        ((F32, F32), 1, 1, 0, 1, range(1)),
        ((F32, None), 2, 16, 1, 128, range(4)),
        ((BF16, None), 2, 16, 1, 128, range(4)),
        ((BF16, F32), 2, 16, 1, 128, range(4)),
        ((BF16, BF16), 3, 19, 1, 33, range(2, 9)),
    ],
)
def test_both_passes_are_the_definition_in_float64(
    launched: bool,
    dtypes: tuple[torch.dtype, torch.dtype | None],
    batch: int,
    tokens: int,
    leading: int,
    width: int,
    places: range,
) -> None:
    x, p, noise = drawn(batch, tokens, leading, width)
    x = x.to(dtypes[0]).requires_grad_()
    positions = None if dtypes[1] is None else p.to(dtypes[1]).requires_grad_()
    leaves = [x] if positions is None else [x, positions]
    if launched:
        ours: Tensor = KeptTokens.apply(x, positions, noise, places, leading)
    else:
        ours = kept_tokens(x, noise, places, positions=positions, leading=leading)
    theirs = by_hand(x, positions, noise, places, leading)
    assert ours.dtype == (dtypes[0] if dtypes[1] is None else torch.promote_types(dtypes[0], dtypes[1]))
    gradient = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours.dtype)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = by_hand(wide[0], wide[1] if len(wide) > 1 else None, noise, places, leading)
    check(
        ours.detach(),
        theirs.detach(),
        torch.autograd.grad(ours, leaves, gradient) if launched or dtypes[0] == F32 else (),
        torch.autograd.grad(exact, wide, gradient.double()) if launched or dtypes[0] == F32 else (),
    )


@given(st.integers(1, 5), st.integers(1, 70), st.integers(0, 2), st.data())
@settings(max_examples=20, deadline=None)
def test_the_kernel_keeps_what_torch_keeps_to_the_bit(
    batch: int, tokens: int, leading: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, tokens - 1))
    places = range(start, data.draw(st.integers(start + 1, tokens)))
    x, p, noise = drawn(batch, tokens, leading, 24, seed=tokens)
    ours = KeptTokens.apply(x, p, noise, places, leading)
    assert torch.equal(ours, kept_tokens(x, noise, places, positions=p, leading=leading))


@given(st.integers(1, 4), st.integers(2, 40), st.data())
def test_kept_and_left_out_are_all_each_once(batch: int, tokens: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, tokens - 1))
    noise = drawn(batch, tokens, 0, 1)[2]
    index = torch.cat([kept_indices(noise, range(count)), kept_indices(noise, range(count, tokens))], 1)
    assert torch.equal(index.sort(1).values, torch.arange(tokens).expand(batch, -1))
    values = noise.gather(1, index)
    assert bool((values[:, :count].amax(1) <= values[:, count:].amin(1)).all())


def test_one_token_for_all_is_not_copied_forth() -> None:
    """A mask token, with strides of 0, at the masked places' positions."""
    _, p, noise = drawn(3, 10, 0, 16)
    token = torch.randn(1, 1, 16, requires_grad=True)
    ours = KeptTokens.apply(token.expand(3, 10, 16), p, noise, range(6, 10), 0)
    assert torch.equal(ours, token + p[kept_indices(noise, range(6, 10))])
    (gradient,) = torch.autograd.grad(ours.sum(), token)
    assert torch.equal(gradient, torch.full_like(gradient, 12.0))


def test_a_view_of_other_strides_is_kept_as_its_copy() -> None:
    x, _, noise = drawn(2, 9, 1, 20)
    column_first = x.transpose(1, 2).contiguous().transpose(1, 2)
    for view in (column_first, x.repeat(1, 1, 2)[..., :20]):
        assert torch.equal(KeptTokens.apply(view, None, noise, range(3), 1), kept_tokens(x, noise, range(3), leading=1))


def test_a_gpus_tensors_go_to_the_kernel_and_others_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[int] = []
    own = kept_kernel.gathered
    monkeypatch.setattr(kept_kernel, "gathered", lambda *given: (launches.append(1), own(*given))[1])
    x, p, noise = drawn(2, 9, 1, 20)
    theirs = kept_tokens(x, noise, range(3), positions=p, leading=1)
    monkeypatch.setattr(kept, "launchable", lambda *tensors: True)
    assert torch.equal(kept_tokens(x, noise, range(3), positions=p, leading=1), theirs)
    assert launches == [1]


@pytest.mark.parametrize("places", [range(0), range(3, 3), range(8, 10), range(0, 8, 2)])
def test_places_that_leave_no_token_or_are_not_there_are_refused(places: range) -> None:
    x, _, noise = drawn(2, 9, 0, 4)
    with pytest.raises(ValueError, match="keep one or more"):
        kept_tokens(x, noise, places)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    x, _, noise = drawn(2, 9, 0, 4)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(
        KeptTokens.apply(x, None, noise, range(3), 0).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_machine_code_for_hopper_is_within_budget() -> None:
    codes = compiled.machine_code("techniques.token_masking.shared.kept_kernel")
    manifests = kept_kernel.MANIFESTS
    assert codes.keys() == manifests.keys()
    violations = {name: gates.check(code, manifests[name].budget) for name, code in codes.items()}
    assert not any(violations.values()), violations
