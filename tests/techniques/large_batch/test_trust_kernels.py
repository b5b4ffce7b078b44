"""The two passes of LAMB and of LARS under the interpreter, against the optimizers' own torch forms in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from techniques.large_batch.lamb import optimizer as of_lamb
from techniques.large_batch.lars import optimizer as of_lars
from tests.techniques.large_batch.trust_lists import BLOCK, PIECE, SHAPES, misaligned, near, random_lists

lamb_kernel = pytest.importorskip("techniques.large_batch.lamb.kernel")  # Triton has no wheel for some platforms
lars_kernel = pytest.importorskip("techniques.large_batch.lars.kernel")
trust_kernel = pytest.importorskip("techniques.large_batch.shared.trust_kernel")
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
INFINITE = math.inf
Lists = list[list[Tensor]]  # parameters, gradients, and what the optimizer keeps of each


class Rule(NamedTuple):
    """An update: by torch, by the kernel, its hyper-parameters, and how many tensors it keeps of each parameter."""

    formula: Callable[..., Any]
    kernel: Any
    name: str
    hyper: dict[str, Any]
    kept: int

    def lists(self, dtype: torch.dtype = F32, kept: torch.dtype = F32, shapes: Any = SHAPES) -> Lists:
        made = random_lists(2 + self.kept, [dtype, dtype, *[kept] * self.kept], shapes)
        return [*made[:3], *([tensor.abs() for tensor in column] for column in made[3:])]

    def expected(self, columns: Lists, factor: float, **changes: Any) -> Lists:
        """Parameters and what is kept after the step, in float64."""
        wide = [[tensor.double() for tensor in column] for column in columns]
        self.formula(wide[0], [factor * each for each in wide[1]], *wide[2:], **self.hyper | changes)
        return [wide[0], *wide[2:]]

    def step(self, columns: Lists, **changes: Any) -> None:
        getattr(self.kernel, self.name)(*columns, self.kernel.launch_tables(), **self.hyper | changes)

    def agrees(self, columns: Lists, factor: float = 1.0, units: float = 4, own: Any = None, **changes: Any) -> bool:
        """Whether they do with ``changes``; ``own`` are further ones of the kernel."""
        wanted = self.expected(columns, factor, **changes)
        self.step(columns, **changes, **own or {})
        got = [columns[0], *columns[2:]]
        return all(near(a, b, units) for ours, other in zip(got, wanted) for a, b in zip(ours, other))


LAMB = Rule(
    of_lamb.lamb_step,
    lamb_kernel,
    "lamb_step",
    {
        "step": 3,
        "learning_rate": 0.03,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-6,
        "weight_decay": 0.1,
        "bias_correction": True,
        "adapt": True,
        "phi": (0.0, INFINITE),
    },
    2,
)
LARS = Rule(
    of_lars.lars_step,
    lars_kernel,
    "lars_step",
    {
        "learning_rate": 0.5,
        "momentum": 0.9,
        "weight_decay": 0.1,
        "trust_coefficient": 0.02,
        "variant": "paper",
        "adapt": True,
    },
    1,
)
both = pytest.mark.parametrize("rule", [LAMB, LARS], ids=["lamb", "lars"])


@both
@pytest.mark.parametrize(("parameter", "kept"), [(F32, F32), (BF16, F32), (BF16, BF16)], ids=str)
def test_step_is_the_formula(rule: Rule, parameter: torch.dtype, kept: torch.dtype) -> None:
    assert rule.agrees(rule.lists(parameter, kept), units=4 if kept == F32 else 16)  # directions are of stored moments


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        (LAMB, {"bias_correction": False}),
        (LAMB, {"phi": (5.0, 10.0)}),
        *((LARS, {"variant": variant}) for variant in ("timm", "moco", "optax")),
        *((rule, changes) for rule in (LAMB, LARS) for changes in ({"adapt": False}, {"weight_decay": 0.0})),
    ],
    ids=lambda each: each.name if isinstance(each, Rule) else "-".join(map(str, *each.items())),
)
def test_variants(rule: Rule, changes: dict[str, Any]) -> None:
    assert rule.agrees(rule.lists(), **changes)


@both
@pytest.mark.parametrize("which", [0, 1, 2, 3, None])
def test_odd_addresses(rule: Rule, which: int | None) -> None:
    columns = [
        misaligned(tensors) if which in (number, None) else tensors
        for number, tensors in enumerate(rule.lists(shapes=[(BLOCK,), (BLOCK + 9,)]))
    ]
    assert rule.agrees(columns)


def test_a_tensor_of_many_blocks_has_one_norm() -> None:
    """More programs than the ratio's kernel reads at a time would need 2 million elements; three blocks show it."""
    columns = LAMB.lists(shapes=[(3 * BLOCK + 5,), (7,)])
    before = [tensor.clone() for tensor in columns[0]]
    LAMB.step(columns)
    for old, new in zip(before, columns[0]):
        assert (new - old).norm().item() == pytest.approx(LAMB.hyper["learning_rate"] * old.norm().item(), rel=1e-5)


def test_the_ratio_kernel_adds_up_any_number_of_programs() -> None:
    counts = [1, trust_kernel.CHUNK, trust_kernel.CHUNK + 3, 2]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    total = sum(counts)
    partials = torch.rand(2 * total, generator=torch.Generator().manual_seed(1))
    ratios = torch.empty(len(counts))
    given = partials, starts, ratios, total, 0.5, 0.1, 20.0, 0.3, 1e-3
    trust_kernel.ratios_kernel[(len(counts),)](*given, CHUNK=trust_kernel.CHUNK)
    for each, first, last in zip(ratios.tolist(), starts.tolist(), starts.tolist()[1:]):
        w = partials[first:last].double().sum().sqrt().item()
        u = partials[total + first : total + last].double().sum().sqrt().item()
        assert each == pytest.approx(0.5 * min(max(w, 0.1), 20.0) / (u + 0.3 * w + 1e-3), rel=1e-5)


@both
def test_zero_weights_and_zero_updates_have_a_ratio_of_1(rule: Rule) -> None:
    columns = rule.lists(shapes=[(40,), (50,), (0,), (PIECE + 3,)])
    columns[0][0].zero_()
    for tensors in columns[1:]:
        tensors[1].zero_()
    assert rule.agrees(columns, weight_decay=0.0)


def test_without_eps_the_lanes_beyond_a_tail_do_not_count() -> None:
    assert LAMB.agrees(LAMB.lists(shapes=[(5,), (PIECE + 1,)]), eps=0.0, units=8)


@both
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_extreme_gradients_spoil_their_own_tensor_at_most(rule: Rule, value: float) -> None:
    columns = rule.lists(shapes=[(PIECE + 5,), (70,)])
    columns[1][0][3] = value
    assert rule.agrees(columns)
    assert columns[0][1].isfinite().all()


@both
def test_clip_acts_on_norm_and_step_and_leaves_the_gradients(rule: Rule) -> None:
    columns = rule.lists(shapes=[(40,), (PIECE + 3,)])
    gradients = [tensor.clone() for tensor in columns[1]]
    assert rule.agrees(columns, factor=0.0625, own={"clip": torch.tensor(0.0625)})
    assert all(torch.equal(a, b) for a, b in zip(gradients, columns[1]))


@both
def test_found_inf_leaves_everything(rule: Rule) -> None:
    columns = rule.lists(shapes=[(40,), (PIECE + 3,)])
    before = [[tensor.clone() for tensor in tensors] for tensors in columns]
    rule.step(columns, found_inf=torch.tensor(1.0))
    assert all(torch.equal(a, b) for old, new in zip(before, columns) for a, b in zip(old, new))
    rule.step(columns, found_inf=torch.tensor(0.0))
    assert not torch.equal(before[0][0], columns[0][0])


@pytest.mark.parametrize(("rule", "own"), [(LAMB, {"bias_correction": False}), (LARS, {"adapt": False})])
def test_stochastic_rounding_is_unbiased(rule: Rule, own: dict[str, Any]) -> None:
    """Steps of a fiftieth of a unit in the last place: rounding to nearest would lose every one."""
    shape = (4 * BLOCK,)
    parameters = torch.ones(shape, dtype=BF16)
    kept = [[torch.ones(shape) if rule is LAMB else torch.zeros(shape)] for _ in range(rule.kept)]
    columns = [[parameters], [torch.ones(shape, dtype=BF16)], *kept]
    rule.step(columns, seed=7, learning_rate=2.0**-8 / 50, weight_decay=0.0, **own)
    assert set(parameters.float().unique().tolist()) == {1.0, 1.0 - 2.0**-8}
    share = (parameters != 1).double().mean().item()
    assert abs(share - 1 / 50) < 4 * math.sqrt(0.02 * 0.98 / shape[0])


def test_many_steps_with_new_gradients_and_a_new_tensor_follow_the_formula() -> None:
    p, _, m, v = LAMB.lists(shapes=[(40,), (PIECE + 3,)])
    wide = [[tensor.double() for tensor in tensors] for tensors in (p, m, v)]
    tables, generator = lamb_kernel.launch_tables(), torch.Generator().manual_seed(3)
    for number in range(1, 5):
        if number == 3:  # the list grows: its launch is another
            for mine, theirs in zip((p, m, v), wide):
                mine.append(torch.ones(BLOCK + 1))
                theirs.append(torch.ones(BLOCK + 1, dtype=torch.float64))
        g = [torch.randn(tensor.shape, generator=generator) for tensor in p]
        hyper = LAMB.hyper | {"step": number}
        lamb_kernel.lamb_step(p, g, m, v, tables, **hyper)
        of_lamb.lamb_step(wide[0], [each.double() for each in g], *wide[1:], **hyper)
    assert all(near(a, b, 16) for ours, other in zip((p, m, v), wide) for a, b in zip(ours, other))


@both
def test_autograd_sees_that_the_parameter_changed(rule: Rule) -> None:
    p = torch.nn.Parameter(torch.ones(4))
    loss = (p * p).sum()
    rule.step([[p], [torch.ones(4)], *([torch.zeros(4)] for _ in range(rule.kept))])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("rule", "parameter", "last", "words"),
    [
        (LAMB, torch.float64, F32, "float32 or bf"),
        (LAMB, F32, BF16, "both"),
        (LARS, torch.float64, F32, "float32 or bf"),
    ],
)
def test_wrong_dtypes_are_refused_before_anything_changed(
    rule: Rule, parameter: torch.dtype, last: torch.dtype, words: str
) -> None:
    p = torch.ones(4, dtype=parameter)
    kept = [[torch.ones(4)] for _ in range(rule.kept - 1)]
    with pytest.raises(TypeError, match=words):
        rule.step([[p], [p.clone()], *kept, [torch.ones(4, dtype=last)]])
    assert torch.equal(p, torch.ones_like(p))
