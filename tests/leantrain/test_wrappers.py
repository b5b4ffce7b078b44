"""Sharpness-aware wrappers and the averager in strangers' loops: their own, Accelerate's, the Trainer's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.optim import ESAM, LAWA, MESA, SAF, SAM, AdamW, Lion
from leantrain.trainer import SharpnessAware

INPUTS = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)).double()
TARGETS = torch.arange(12) % 4


def network(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4)).double()


def loss_of(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(INPUTS), TARGETS)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


# SAM ------------------------------------------------------------------------------------------------------------------


def by_context(optimizer: SAM, model: nn.Module) -> None:
    optimizer.zero_grad()
    loss_of(model).backward()
    with optimizer.worst_point():
        loss_of(model).backward()
    optimizer.step()


def by_closure(optimizer: SAM, model: nn.Module) -> None:
    def closure() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("way", [by_context, by_closure])
def test_sam_is_the_papers_formula(way: Callable[[SAM, nn.Module], None]) -> None:
    model, copied = network(), network()
    optimizer, plain = SAM(sgd(model), rho=0.3), sgd(copied)
    for _ in range(4):
        way(optimizer, model)
        w = flat(copied)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss_of(copied), list(copied.parameters()))])
        nn.utils.vector_to_parameters(w + 0.3 * gradient / gradient.norm(), copied.parameters())
        plain.zero_grad()
        loss_of(copied).backward()
        nn.utils.vector_to_parameters(w, copied.parameters())
        plain.step()
    torch.testing.assert_close(flat(model), flat(copied), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", [by_context, by_closure])
def test_running_statistics_are_those_of_the_first_pass(way: Callable[[SAM, nn.Module], None]) -> None:
    model, plain = (nn.Sequential(network(), nn.BatchNorm1d(4).double()) for _ in range(2))
    optimizer = SAM(sgd(model), rho=0.3, model=model)
    for step in range(1, 3):
        plain(INPUTS)
        way(optimizer, model)
        assert model[1].num_batches_tracked == step
        for name, each in model[1].named_buffers():
            assert torch.equal(each, plain[1].get_buffer(name)), name
        plain.load_state_dict(model.state_dict())


def test_sam_comes_back_to_the_bit_also_by_an_error() -> None:
    model = network()
    optimizer = SAM(sgd(model), rho=0.3)
    before = flat(model)
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="out of data"), optimizer.worst_point():
        assert abs((flat(model) - before).norm() - 0.3) < 1e-9
        raise RuntimeError("out of data")
    assert torch.equal(flat(model), before)
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"call loss.backward\(\) before"), optimizer.worst_point():
        pass


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])  # noqa: S301
def test_a_wrapper_is_an_optimizer(copied: Any) -> None:
    model = network()
    inner = sgd(model)
    optimizer = SAM(inner)
    assert optimizer.param_groups is inner.param_groups
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=9)
    for _ in range(2):
        by_context(optimizer, model)
        scheduler.step()
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] != 0.5
    saved = copy.deepcopy(optimizer.state_dict())
    other, twin = copied((optimizer, model))
    again = copy.deepcopy(model)
    loaded = SAM(sgd(again))
    loaded.load_state_dict(saved)
    for each, its in ((optimizer, model), (other, twin), (loaded, again)):
        by_context(each, its)
    assert torch.equal(flat(model), flat(twin))
    assert torch.equal(flat(model), flat(again))
    extra = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra]})
    assert inner.param_groups[-1]["params"] == [extra]
    assert len(optimizer.param_groups) == 2
    with pytest.raises(TypeError, match="wraps an optimizer"):
        SAM(model.parameters())  # type: ignore[arg-type]


def test_sam_under_a_gradient_scaler() -> None:
    """The direction does not know the scale; a step that is not finite is left out, and the weights are as before."""
    model, plain = network().float(), network().float()
    x = INPUTS.float()
    optimizer, unscaled = SAM(AdamW(model.parameters(), lr=0.1)), SAM(AdamW(plain.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for step in range(3):
        bad = step == 1
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), TARGETS)).backward()
        with optimizer.worst_point():
            scaler.scale(F.cross_entropy(model(x), TARGETS) * (float("inf") if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if not bad:
            unscaled.zero_grad()
            F.cross_entropy(plain(x), TARGETS).backward()
            with unscaled.worst_point():
                F.cross_entropy(plain(x), TARGETS).backward()
            unscaled.step()
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-4, atol=1e-5)


def test_a_compiled_model_sees_the_worst_point_and_is_not_compiled_again() -> None:
    model, plain = network(), network()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer, eager = SAM(sgd(model), rho=0.3), SAM(sgd(plain), rho=0.3)
    for step in range(3):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            by_context(optimizer, compiled)
        by_context(eager, plain)
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-12, atol=1e-12)


# ESAM -----------------------------------------------------------------------------------------------------------------


def losses_of(model: nn.Module, asked: list[Any] | None = None) -> Callable[[Tensor | None], Tensor]:
    def losses(kept: Tensor | None) -> Tensor:
        those = slice(None) if kept is None else kept
        if asked is not None:
            asked.append(kept)
        return F.cross_entropy(model(INPUTS[those]), TARGETS[those], reduction="none")

    return losses


def test_esam_of_everything_is_sam() -> None:
    model, copied = network(), network()
    ours, theirs = ESAM(sgd(model), rho=0.3, beta=1.0, gamma=1.0), SAM(sgd(copied), rho=0.3)
    for _ in range(3):
        ours.step(losses_of(model))
        by_context(theirs, copied)
    torch.testing.assert_close(flat(model), flat(copied), rtol=1e-12, atol=1e-12)


def test_esam_learns_from_the_examples_whose_loss_rises_most() -> None:
    """With every tensor perturbed, against the formula."""
    model, copied = network(), network()
    asked: list[Any] = []
    ESAM(sgd(model), rho=0.3, beta=1.0, gamma=0.5).step(losses_of(model, asked))
    w, plain = flat(copied), sgd(copied)
    before = losses_of(copied)(None)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(before.mean(), list(copied.parameters()))])
    nn.utils.vector_to_parameters(w + 0.3 * gradient / gradient.norm(), copied.parameters())
    after = losses_of(copied)(None)
    kept = (after - before).topk(6).indices.sort().values
    after[kept].mean().backward()
    nn.utils.vector_to_parameters(w, copied.parameters())
    plain.step()
    assert torch.equal(asked[-1], kept)
    torch.testing.assert_close(flat(model), flat(copied), rtol=1e-12, atol=1e-12)


def test_esam_perturbs_the_same_tensors_after_loading_and_all_passes_draw_one_noise() -> None:
    model = network(dropout=0.5)
    optimizer = ESAM(sgd(model), rho=0.1, gamma=1.0, beta=0.5)
    optimizer.step(losses_of(model))
    twin = copy.deepcopy(model)
    other = ESAM(sgd(twin), rho=0.1, gamma=1.0, beta=0.5, seed=9)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((optimizer, model), (other, twin)):
        torch.manual_seed(3)
        for _ in range(4):
            each.step(losses_of(its))
    assert torch.equal(flat(model), flat(twin))
    drawn = []
    torch.manual_seed(5)

    def losses(kept: Tensor | None) -> Tensor:
        drawn.append(torch.rand(3))
        return losses_of(model)(kept)

    ESAM(sgd(model), gamma=0.5).step(losses)
    assert len(drawn) == 3
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


def test_esam_comes_back_and_says_what_it_needs() -> None:
    model = network()
    optimizer = ESAM(sgd(model), rho=0.3, beta=1.0)
    before = flat(model)
    calls = 0

    def failing(kept: Tensor | None) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            assert not torch.equal(flat(model), before)
            raise RuntimeError("out of data")
        return losses_of(model)(kept)

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(failing)
    assert torch.equal(flat(model), before)
    with pytest.raises(ValueError, match="three times"):
        optimizer.step()
    with pytest.raises(ValueError, match="the loss of each"):
        optimizer.step(lambda kept: loss_of(model))


# SAF and MESA ---------------------------------------------------------------------------------------------------------


def divergence(past: Tensor, now: Tensor) -> Tensor:
    p, q = (past / 5).softmax(-1), (now / 5).softmax(-1)
    return 25 * (p * (p.log() - q.log())).sum(-1)


def test_safs_term_is_towards_its_own_past() -> None:
    model = network()
    optimizer = SAF(sgd(model), examples=12, classes=4, strength=0.7, epochs_ago=2)
    seen: list[Tensor] = []
    for visit in range(5):
        logits = model(INPUTS)
        term = optimizer.term(logits, torch.arange(12))
        past = seen[max(0, visit - 2)] if seen else logits.detach()
        torch.testing.assert_close(term.double(), 0.7 * divergence(past, logits).mean(), rtol=1e-4, atol=1e-5)
        seen.append(logits.detach())
        optimizer.zero_grad()
        (F.cross_entropy(logits, TARGETS) + term).backward()
        optimizer.step()
    other = SAF(sgd(model), examples=12, classes=4, strength=0.7, epochs_ago=2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(other.term(model(INPUTS), torch.arange(12)), optimizer.term(model(INPUTS), torch.arange(12)))
    with pytest.raises(ValueError, match="one row of class logits"):
        optimizer.term(torch.zeros(2, 3, 4), torch.arange(2))


def test_mesas_term_is_towards_the_average() -> None:
    model = network()
    optimizer = MESA(sgd(model), model, strength=0.7, decay=0.5, start=1)
    average = flat(model)
    for step in range(4):
        logits = model(INPUTS)
        term = optimizer.term(logits, lambda teacher: teacher(INPUTS))
        assert (term == 0) == (step == 0)
        teacher = network()
        nn.utils.vector_to_parameters(average, teacher.parameters())
        if step:
            torch.testing.assert_close(
                term.double(), 0.7 * divergence(teacher(INPUTS), logits).mean(), rtol=1e-4, atol=1e-5
            )
        optimizer.zero_grad()
        (F.cross_entropy(logits, TARGETS) + term).backward()
        optimizer.step()
        average = 0.5 * average + 0.5 * flat(model)
    torch.testing.assert_close(flat(optimizer.teacher), average)
    other = MESA(sgd(model), model, decay=0.5)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(flat(other.teacher), flat(optimizer.teacher))


# LAWA -----------------------------------------------------------------------------------------------------------------


def test_lawa_is_the_mean_of_the_latest() -> None:
    model = network()
    averaged = LAWA(model, k=3)
    assert isinstance(averaged, torch.optim.swa_utils.AveragedModel)
    versions = []
    for step in range(5):
        nn.utils.vector_to_parameters(flat(model) * (step + 1), model.parameters())
        versions.append(flat(model))
        averaged.update_parameters(model)
        torch.testing.assert_close(flat(averaged.module), torch.stack(versions[-3:]).mean(0))
    assert averaged.n_averaged == 5
    loaded = LAWA(network(seed=7), k=3)
    loaded.load_state_dict(copy.deepcopy(averaged.state_dict()))
    for each in (averaged, loaded):
        each.update_parameters(network())
    assert torch.equal(averaged(INPUTS), loaded(INPUTS))
    with pytest.raises(ValueError, match="at least 1"):
        LAWA(model, k=0)
    with pytest.raises(ValueError, match="make a new LAWA"):
        averaged.update_parameters(nn.Linear(2, 2))


HELPED: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, nn.Module], Any]]] = {
    "SAM": (lambda model: SAM(sgd(model)), lambda optimizer, model: by_worst_point(optimizer, model)),
    "SAF": (
        lambda model: SAF(sgd(model), examples=12, classes=4),
        lambda optimizer, model: optimizer.term(model(INPUTS), torch.arange(12)),
    ),
    "MESA": (
        lambda model: MESA(sgd(model), model),
        lambda optimizer, model: optimizer.term(model(INPUTS), lambda teacher: teacher(INPUTS)),
    ),
}


def by_worst_point(optimizer: SAM, model: nn.Module) -> None:
    with optimizer.worst_point():
        loss_of(model).backward()


@pytest.mark.parametrize("name", HELPED)
def test_a_step_without_its_callers_help_is_an_error_and_moves_nothing(name: str) -> None:
    make, help = HELPED[name]
    model = network()
    optimizer = make(model)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model).backward()
        before = flat(model)
        with pytest.raises(RuntimeError, match=f"a step of {name} alone is one of the optimizer that it wraps"):
            optimizer.step()
        assert torch.equal(flat(model), before)
        help(optimizer, model)
        optimizer.step()
        assert not torch.equal(flat(model), before)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()  # torch.distributed.checkpoint makes the state so


# Accelerate, transformers.Trainer -------------------------------------------------------------------------------------


def wrapped(name: str, inner: torch.optim.Optimizer, model: nn.Module) -> Any:
    if name == "mesa":
        return MESA(inner, model, decay=0.5)
    return {"sam": SAM, "esam": ESAM}[name](inner) if name in ("sam", "esam") else inner


@pytest.mark.parametrize("name", ["sam", "esam", "mesa", "lion"])
def test_in_accelerate(name: str) -> None:
    from accelerate import Accelerator

    ends = []
    for accelerated in (False, True):
        model = network()
        inner = Lion(model.parameters(), lr=0.01)
        optimizer = wrapped(name, inner, model)
        backward: Callable[[Tensor], Any] = Tensor.backward
        unwrapped = optimizer
        if accelerated:
            accelerator = Accelerator(cpu=True)
            model, optimizer = accelerator.prepare(model, optimizer)
            backward = accelerator.backward
        for _ in range(3):
            optimizer.zero_grad()
            if name == "esam":
                optimizer.step(losses_of(model))
                continue
            loss = loss_of(model)
            if name == "mesa":
                loss = loss + unwrapped.term(model(INPUTS), lambda teacher: teacher(INPUTS))
            backward(loss)
            if name == "sam":
                with unwrapped.worst_point():
                    backward(loss_of(model))
            optimizer.step()
        ends.append(flat(model))
    assert torch.equal(*ends)


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": INPUTS[index].float(), "labels": TARGETS[index]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network().float()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def trained(
    folder: Path, make: Callable[[nn.Module], torch.optim.Optimizer], steps: int, resume: bool = False
) -> tuple[nn.Module, Any]:
    from transformers import TrainerCallback

    class Averaging(TrainerCallback):
        def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
            averaged.update_parameters(model)

    model = Classifier()
    averaged = LAWA(model, k=2)
    trainer = trainer_of(folder, model, make(model), steps)
    trainer.add_callback(Averaging())
    if isinstance(trainer.optimizer, SAM):
        trainer.add_callback(SharpnessAware(trainer))
    trainer.train(resume_from_checkpoint=resume)
    return model, averaged


def trainer_of(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, passes: int = 1) -> Any:
    """It takes 6 examples a step, in one or several passes."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=6 // passes,
        use_cpu=True,
        report_to=[],
        seed=0,
        save_steps=2,
        disable_tqdm=True,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        gradient_accumulation_steps=passes,
    )
    return Trainer(model, arguments, train_dataset=Rows(), optimizers=(optimizer, None))


def test_a_stock_trainer_with_sam_raises_and_does_not_train_without_it(tmp_path: Path) -> None:
    model = Classifier()
    before = flat(model)
    trainer = trainer_of(tmp_path, model, SAM(Lion(model.parameters(), lr=0.01)), steps=2)
    with pytest.raises(RuntimeError, match=r"add the callback leantrain\.trainer\.SharpnessAware"):
        trainer.train()
    assert torch.equal(flat(model), before)
    plain = trainer_of(tmp_path, model, Lion(model.parameters(), lr=0.01), steps=2)
    plain.add_callback(SharpnessAware(plain))
    with pytest.raises(TypeError, match="needs a SAM"):
        plain.train()


def test_a_trainers_passes_are_all_taken_at_the_worst_point(tmp_path: Path) -> None:
    """So are one step of all examples: losses are means, and the gradients of passes add up."""
    ends = []
    for passes in (1, 3):
        model = Classifier()
        trainer = trainer_of(tmp_path / str(passes), model, SAM(sgd(model), rho=0.3), steps=4, passes=passes)
        trainer.add_callback(SharpnessAware(trainer))
        trainer.train()
        assert "training_step" not in vars(trainer)
        ends.append(flat(model))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_in_a_trainer_running_statistics_move_once_a_pass(tmp_path: Path) -> None:
    model = Classifier()
    model.layers.append(nn.BatchNorm1d(4))
    trainer = trainer_of(tmp_path, model, SAM(sgd(model), rho=0.3), steps=2, passes=2)
    trainer.add_callback(SharpnessAware(trainer))
    trainer.train()
    assert model.layers[-1].num_batches_tracked == 4


@pytest.mark.parametrize("name", ["lion", "sam"])
def test_in_the_trainer_of_transformers_also_resumed(tmp_path: Path, name: str) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        inner = Lion(model.parameters(), lr=0.01)
        return SAM(inner, rho=0.1) if name == "sam" else inner

    straight, averaged = trained(tmp_path / "straight", make, steps=6)
    trained(tmp_path / "resumed", make, steps=4)
    resumed, _ = trained(tmp_path / "resumed", make, steps=6, resume=True)
    assert torch.equal(flat(straight), flat(resumed))
    assert averaged.n_averaged == 6
    other, _ = trained(tmp_path / "other", lambda model: torch.optim.SGD(model.parameters(), lr=0.01), steps=6)
    assert not torch.equal(flat(straight), flat(other))
    if name == "sam":
        plain, _ = trained(tmp_path / "plain", lambda model: Lion(model.parameters(), lr=0.01), steps=6)
        assert not torch.equal(flat(plain), flat(straight))
