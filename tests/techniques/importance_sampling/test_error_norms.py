"""Scores beside the cross-entropy by the kernel, here under the interpreter, against float64 and torch's operators."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.entries.installed import baselines
from suite.kernels import gates
from suite.loop.data import Batch
from techniques.importance_sampling.shared import error_norms
from techniques.importance_sampling.shared.error_norms import ScoredCrossEntropy, losses_and_scores
from tests.kernels import compiled
from tests.runs import new_run

kernel = pytest.importorskip(
    "techniques.importance_sampling.shared.error_norms_kernel"
)  # not every platform has Triton
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
IGNORED = -100


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several blocks and a tail."""
    monkeypatch.setattr(kernel, "BLOCK", 16)


def drawn(rows: int, classes: int, seed: int = 0, spread: float = 4.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        spread * torch.randn(rows, classes, generator=generator),
        torch.randint(classes, (rows,), generator=generator),
    )


def exact(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Loss, its gradient and its norm in float64; 0 of ignored rows."""
    wide = logits.double()
    counted = targets != IGNORED
    errors = (wide.softmax(-1) - F.one_hot(targets.clamp(min=0), wide.shape[-1])) * counted[:, None]
    losses = F.cross_entropy(wide, targets, reduction="none", ignore_index=IGNORED)
    return {"losses": losses, "norms": errors.norm(dim=-1), "gradients": errors}


def by_kernel(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    leaf = logits.clone().requires_grad_()
    losses, norms = ScoredCrossEntropy.apply(leaf, targets, IGNORED)
    (gradients,) = torch.autograd.grad(losses.sum(), leaf)
    return {"losses": losses.detach(), "norms": norms, "gradients": gradients}


def check(logits: Tensor, targets: Tensor) -> None:
    ours, expected = by_kernel(logits, targets), exact(logits, targets)
    assert ours["gradients"].dtype == logits.dtype
    for name, each in ours.items():
        eps = torch.finfo(each.dtype).eps
        torch.testing.assert_close(each.double(), expected[name], rtol=20 * eps, atol=20 * torch.finfo(F32).eps)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("classes", [1, 2, 10, 16, 17, 31, 48, 77])
def test_loss_norm_and_gradient_are_the_formulas_in_float64(classes: int, dtype: torch.dtype) -> None:
    logits, targets = drawn(5, classes)
    targets[1] = IGNORED
    check(logits.to(dtype), targets)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 1000), st.floats(0.01, 30))
def test_any_rows_of_any_spread(rows: int, classes: int, seed: int, spread: float) -> None:
    check(*drawn(rows, classes, seed, spread))


def test_the_norm_of_what_is_nearly_right_keeps_its_digits() -> None:
    """1 - p = 1e-6, where sum p^2 - 2 p + 1 in float32 is off by a tenth and more."""
    logits = torch.zeros(1, 33)
    logits[0, 20] = 17.3
    norms = by_kernel(logits, torch.tensor([20]))["norms"]
    torch.testing.assert_close(norms.double(), exact(logits, torch.tensor([20]))["norms"], rtol=1e-5, atol=0)


def test_logits_of_minus_infinity_are_classes_that_are_left_out() -> None:
    logits, targets = drawn(3, 40)
    logits[:, :18] = -torch.inf  # a whole first block
    check(logits, targets.clamp(min=18))


def test_what_is_not_finite_spoils_its_row_alone() -> None:
    logits, targets = drawn(4, 20)
    logits[1, 3], logits[2, 5] = torch.nan, torch.inf
    ours = by_kernel(logits, targets)
    for name in ("losses", "norms"):
        assert ours[name].isfinite().tolist() == [True, False, False, True]


def test_no_rows_launch_nothing() -> None:
    ours = by_kernel(torch.empty(0, 7), torch.empty(0, dtype=torch.int64))
    assert [tuple(each.shape) for each in ours.values()] == [(0,), (0,), (0, 7)]


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    logits, targets = drawn(2, 5)
    losses, _ = ScoredCrossEntropy.apply(logits.requires_grad_(), targets, IGNORED)
    (gradient,) = torch.autograd.grad(losses.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# in the baselines' losses ---------------------------------------------------------------------------------------------


def batch_of(baseline: str) -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(31, (3, 8), generator=generator)
    if baseline == "vit":
        return {"labels": tokens[:, 0] % 10}, torch.randn(3, 10, generator=generator)
    logits = torch.randn(3, 8, 31, generator=generator)
    if baseline == "gpt":
        return {"input_ids": tokens}, logits
    labels = tokens.where(torch.rand(3, 8, generator=generator) < 0.4, IGNORED)
    labels[2] = IGNORED  # an example of which nothing counts
    return {"input_ids": tokens, "labels": labels}, logits


@pytest.mark.parametrize("baseline", ["vit", "bert", "gpt"])
@pytest.mark.parametrize("training", [True, False])
def test_examples_losses_scores_and_gradients_as_in_torch(
    baseline: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, logits = batch_of(baseline)
    logits.requires_grad_(training)
    of, outputs = baselines()[baseline], SimpleNamespace(logits=logits)
    plain = losses_and_scores(of, outputs, batch)
    launched: list[int] = []
    launch = kernel.losses_and_norms

    def counted(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        launched.append(len(tensors[0]))
        return launch(*tensors)

    monkeypatch.setattr(kernel, "losses_and_norms", counted)
    monkeypatch.setattr(error_norms, "launchable", lambda logits: True)
    ours = losses_and_scores(of, outputs, batch)
    assert len(launched) == 1
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    if training:
        gradients = [torch.autograd.grad(losses.mean(), logits)[0] for losses, _ in (ours, plain)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_another_cross_entropy_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_norms, "launchable", lambda logits: True)
    monkeypatch.setattr(kernel, "losses_and_norms", lambda *_: pytest.fail("the kernel was launched"))
    logits, targets = drawn(3, 5)

    def losses(outputs: SimpleNamespace, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.logits, targets, reduction="none", label_smoothing=0.1)

    _, scores = losses_and_scores(SimpleNamespace(losses=losses), SimpleNamespace(logits=logits), {})  # type: ignore[arg-type]
    smooth = 0.9 * F.one_hot(targets, 5) + 0.1 / 5
    torch.testing.assert_close(scores, (logits.softmax(-1) - smooth).norm(dim=-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("technique", ["is_gradnorm:threshold=0"])
def test_models_train_with_the_kernel_as_without(technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = new_run("vit", technique, size="pico", recipe="classic", steps=8).train(3)
    monkeypatch.setattr(error_norms, "launchable", lambda logits: True)
    with_kernel = new_run("vit", technique, size="pico", recipe="classic", steps=8).train(3)
    assert with_kernel == pytest.approx(without, rel=1e-4)


def test_machine_code_for_hopper_is_within_budget() -> None:
    codes = compiled.machine_code("techniques.importance_sampling.shared.error_norms_kernel")
    manifests = kernel.MANIFESTS
    assert codes.keys() == manifests.keys()
    violations = {name: gates.check(code, manifests[name].budget) for name, code in codes.items()}
    assert not any(violations.values()), violations
