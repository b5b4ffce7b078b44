"""Applied stacks in the Trainer of transformers and in Accelerate: the plain loop's steps, also after a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from leantrain.applying import Applied, apply, refusals
from leantrain.trainer import STATE, AppliedTechniques
from suite.entries.catalogue import catalogue
from suite.loop.technique import overrides
from tests.model.transformer_models import build

ROWS = torch.randint(3, 64, (32, 12), generator=torch.Generator().manual_seed(0))
STEPS = 4
STACKS = ["lora:dropout=0.1+adam8bit_blockwise+ckpt_chen_sqrt", "sam+lion", "saf_mesa:start=0+lamb", "rigl:interval=2"]


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": ROWS[index], "labels": ROWS[index]}


def begun(stack: str) -> Applied:
    torch.manual_seed(0)
    return apply(build("gpt2"), stack, learning_rate=1e-3, steps=STEPS, gradient_clip=1.0)


def in_a_trainer(folder: Path, stack: str, steps: int = STEPS, resume: bool = False, **options: Any) -> nn.Module:
    model, optimizer, context = begun(stack)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        seed=1,
        save_steps=2,
        disable_tqdm=True,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        **options,
    )
    trainer = Trainer(model, arguments, train_dataset=Texts(), optimizers=(optimizer, None))
    trainer.add_callback(AppliedTechniques(trainer, context))
    trainer.train(resume_from_checkpoint=resume)
    assert not {"training_step", "compute_loss"} & vars(trainer).keys()
    return context.run.model


def equal(ours: nn.Module, theirs: nn.Module) -> bool:
    mine, other = ours.state_dict(), theirs.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(each, other[name]) for name, each in mine.items())


@pytest.mark.parametrize("stack", STACKS)
def test_a_trainer_makes_the_stacks_steps_and_goes_on_from_its_checkpoint(stack: str, tmp_path: Path) -> None:
    whole = in_a_trainer(tmp_path / "whole", stack)
    assert equal(in_a_trainer(tmp_path / "again", stack, steps=2), in_a_trainer(tmp_path / "parts", stack, steps=2))
    assert (tmp_path / "parts" / "checkpoint-2" / STATE).is_file()
    resumed = in_a_trainer(tmp_path / "parts", stack, resume=True)
    assert equal(resumed, whole)


class Undisturbed(Trainer):
    """Notes its batches."""

    batches: list[dict[str, Tensor]]

    def _prepare_inputs(self, inputs: Any) -> Any:
        vars(self).setdefault("batches", []).append(inputs)
        return super()._prepare_inputs(inputs)


@pytest.mark.parametrize("stack", ["rigl:interval=2+sgd_momentum", "sam+sgd_momentum", "saf_mesa:start=0+sgd_momentum"])
def test_a_trainers_steps_are_the_plain_loops(stack: str, tmp_path: Path) -> None:
    """Up to the rounding of a mean that the Trainer takes itself."""
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        seed=1,
        save_strategy="no",
        disable_tqdm=True,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    ours, theirs = (begun(stack) for _ in range(2))
    for module in (*ours.model.modules(), *theirs.model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    trainer = Undisturbed(theirs.model, arguments, train_dataset=Texts(), optimizers=(theirs.optimizer, None))
    trainer.add_callback(AppliedTechniques(trainer, theirs.context))
    trainer.train()
    tokens = {tuple(batch["input_ids"].flatten().tolist()): batch for batch in trainer.batches}
    assert len(tokens) == 2
    for batch in tokens.values():
        step(ours, batch)
    for name, each in ours.model.state_dict().items():
        torch.testing.assert_close(theirs.model.state_dict()[name], each, rtol=1e-4, atol=1e-6, msg=name)


def step(applied: Applied, batch: dict[str, Tensor], backward: Any = Tensor.backward) -> None:
    model, optimizer, context = applied
    if context.run.overriding("update"):
        context.update(batch)
        return
    with context.step(batch):
        outputs = model(**batch)
        loss = context.loss(outputs.loss, outputs) if context.run.adding_terms() else outputs.loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def test_what_a_trainer_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sam takes a step's batch as a whole"):
        in_a_trainer(tmp_path, "sam", gradient_accumulation_steps=2)
    model, _, context = begun("lion")
    arguments = TrainingArguments(output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=Texts())
    trainer.add_callback(AppliedTechniques(trainer, context))
    with pytest.raises(ValueError, match=r"optimizers=\(optimizer, None\)"):
        trainer.train()
    in_a_trainer(tmp_path / "lost", "lion", steps=2)
    (tmp_path / "lost" / "checkpoint-2" / STATE).unlink()
    with pytest.raises(ValueError, match="the checkpoint was written without the stack"):
        in_a_trainer(tmp_path / "lost", "lion", resume=True)


def test_a_trainer_accumulates_and_clips(tmp_path: Path) -> None:
    model = in_a_trainer(tmp_path, "lora+lion+ckpt_chen_sqrt", steps=2, gradient_accumulation_steps=2)
    assert any(bool(each.any()) for name, each in model.named_parameters() if ".b." in name)


ADDING = {
    "saf_mesa": "saf_mesa:start=0,decay=0.9",
    "dota": "dota:bits=16",  # of few bits: their scale is a whole batch's
    "early_bird": "early_bird:interval=9",
    "earlybert": "earlybert:search=0.9",
    "amp_fp16": "amp_fp16",
}
OTHERWISE = {
    "vitcod": "refused below",
    "gact": "adds nothing: it measures by draws of its own",
    "saf": "asks for examples' numbers, which a Trainer has not",
}


class Uneven(Texts):
    """Rows with more and fewer labels."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        return row | {"labels": torch.where(torch.arange(12) < index % 7, -100, row["labels"])}


def divided(folder: Path, stack: str, size: int, **options: Any) -> nn.Module:
    """Three steps of eight rows each, ``size`` at a time, without dropout."""
    torch.manual_seed(0)
    applied = apply(build("gpt2"), stack, learning_rate=1e-7 if "dota" in stack else 1e-3, steps=10)
    for module in applied.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=size,
        use_cpu=True,
        report_to=[],
        seed=1,
        gradient_accumulation_steps=8 // size,
        save_strategy="no",
        disable_tqdm=True,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        **{"max_steps": 3} | options,
    )
    trainer = Trainer(applied.model, arguments, train_dataset=Uneven(), optimizers=(applied.optimizer, None))
    trainer.add_callback(AppliedTechniques(trainer, applied.context))
    trainer.train()
    return applied.context.run.model


@pytest.mark.parametrize("name", ADDING)
def test_a_term_counts_the_same_however_a_batch_is_divided(name: str, tmp_path: Path) -> None:
    stack = f"{ADDING[name]}+sgd_momentum"
    begun, whole = (dict(divided(tmp_path, stack, 8, max_steps=steps).named_parameters()) for steps in (1, 3))
    for size in (4, 2):
        for each, parameter in divided(tmp_path, stack, size).named_parameters():
            moved, apart = ((whole[each] - other).norm().item() for other in (begun[each], parameter))
            assert apart <= 0.03 * moved + 1e-6 * whole[each].norm().item(), f"{each} at {size}: {apart} of {moved}"


def test_labels_that_the_trainer_smooths_are_still_there_for_a_term(tmp_path: Path) -> None:
    """It takes them out of the batch; the term leaves positions without a label out."""
    stack = f"{ADDING['saf_mesa']}+sgd_momentum"
    whole, halves = (divided(tmp_path, stack, size, label_smoothing_factor=0.1) for size in (8, 4))
    for ours, theirs in zip(halves.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_every_entry_that_adds_a_term_is_divided_here_or_says_why_not(tmp_path: Path) -> None:
    adding = {
        name
        for name, entry in catalogue().items()
        if overrides(entry.technique, "loss") and not overrides(entry.technique, "update") and name not in refusals()
    }
    assert adding == {*ADDING, *OTHERWISE}
    with pytest.raises(ValueError, match="vitcod takes a step's batch as a whole: gradient_accumulation_steps=1"):
        divided(tmp_path, "vitcod:batches=1", 4)


def test_clipping_before_what_changes_gradients_is_refused(tmp_path: Path) -> None:
    """A float16 loss is scaled by 2^16: the Trainer would clip that gradient to 1, and the step divide it by 2^16."""
    model, optimizer, context = begun("amp_fp16+sgd_momentum")
    arguments = TrainingArguments(output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=Texts(), optimizers=(optimizer, None))
    trainer.add_callback(AppliedTechniques(trainer, context))
    with pytest.raises(ValueError, match=r"amp_fp16 changes the gradients behind the Trainer's clipping: max_grad_nor"):
        trainer.train()


class AtTheStep(TrainerCallback):
    """Notes the gradients of the first step, behind the Trainer's clipping."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.gradients = model, dict[str, Tensor]()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}


def clipped_in_a_trainer(folder: Path, stack: str, max_grad_norm: float) -> tuple[dict[str, Tensor], set[str]]:
    """The gradients of a step, and the names of the model's own."""
    torch.manual_seed(0)
    own = {name for name, _ in build("gpt2").named_parameters()}
    torch.manual_seed(0)
    model, optimizer, context = apply(build("gpt2"), stack, steps=2)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        seed=1,
        save_strategy="no",
        disable_tqdm=True,
        max_grad_norm=max_grad_norm,
    )
    trainer = Trainer(model, arguments, train_dataset=Texts(), optimizers=(optimizer, None))
    noted = AtTheStep(model)
    trainer.add_callback(AppliedTechniques(trainer, context))
    trainer.add_callback(noted)
    trainer.train()
    assert "clip_grad_norm_" not in vars(trainer.accelerator)
    return noted.gradients, own


def test_a_trainer_clips_the_model_by_its_own_norm(tmp_path: Path) -> None:
    """Whatever trains beside it, which is clipped, too."""
    stack = "dota:weight=1000"
    plain, own = clipped_in_a_trainer(tmp_path, stack, 0.0)
    clipped, _ = clipped_in_a_trainer(tmp_path, stack, 1.0)
    assert own < plain.keys() == clipped.keys()
    for names in (own, plain.keys() - own):
        alone = {name: nn.Parameter(torch.zeros_like(plain[name])) for name in plain if name in names}
        for name, parameter in alone.items():
            parameter.grad = plain[name].clone()
        assert nn.utils.clip_grad_norm_(alone.values(), 1.0) > 1
        for name, parameter in alone.items():
            torch.testing.assert_close(clipped[name], parameter.grad, rtol=1e-6, atol=0.0, msg=name)


@pytest.mark.parametrize("stack", STACKS[:3])
def test_in_accelerate_a_saved_loop_goes_on(stack: str, tmp_path: Path) -> None:
    from accelerate import Accelerator

    def train(first: int, last: int, folder: Path | None = None) -> nn.Module:
        model, optimizer, context = begun(stack)
        accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(context)
        if first and folder:
            accelerator.load_state(str(folder))
        for start in range(4 * first, 4 * last, 4):
            batch = dict.fromkeys(("input_ids", "labels"), ROWS[start : start + 4])
            step(Applied(model, optimizer, context), batch, accelerator.backward)
        if folder and not first:
            accelerator.save_state(str(folder))
        return context.run.model

    torch.manual_seed(5)
    whole = train(0, 4)
    torch.manual_seed(5)
    train(0, 2, tmp_path / "state")
    assert equal(train(2, 4, tmp_path / "state"), whole)
