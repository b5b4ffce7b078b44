"""A model within a budget: gradients to the bit, peaks as predicted and within it, and refusals that leave no trace."""

from __future__ import annotations

import copy
import doctest
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import leantrain
from leantrain import fitting
from leantrain.fitted_plan import sized
from leantrain.fitting import Fitted, fit
from suite.chain.chain import Chain
from suite.chain.plan import by_peak
from suite.meters.tensors import TensorBytes
from techniques.rematerialization.rotor.technique import Rotor
from tests.chain.chains import chains
from tests.model.transformer_models import build

NAMES = ["gpt2", "llama", "bert", "vit"]  # gpt2 and bert have dropout and tied weights, texts a mask
Batch = dict[str, Tensor]


def batch_of(name: str, examples: int = 4, length: int = 24) -> Batch:
    draw = torch.Generator().manual_seed(0)
    if name in ("vit", "mae"):
        return {"images": torch.randn(examples, 3, 32, 32, generator=draw), "classes": torch.arange(examples) % 10}
    tokens = torch.randint(3, 64, (examples, length), generator=draw)
    mask = torch.ones_like(tokens)
    mask[0, length - 4 :] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    if "images" not in batch:
        return model(**batch).loss
    outputs = model(batch["images"])
    return outputs.loss if hasattr(outputs, "loss") else F.cross_entropy(outputs, batch["classes"])


@cache
def ends(name: str, accumulate: bool = False) -> tuple[int, int]:
    """The least budget and that of a plain pass, in bytes."""
    model, batch = build(name), batch_of(name)
    plan = fit(model, batch, loss_of, "1GB", accumulate=accumulate).plan
    return least_of(model, batch, plan.resident_bytes, accumulate=accumulate), plan.peak_bytes


def least_of(model: nn.Module, batch: Batch, resident_bytes: int, **options: Any) -> int:
    refusal = refused(model, batch, f"{resident_bytes}B", **options)
    amount, unit = refusal.split("its least is ")[1].split(",")[0].split(" ")
    return int((float(amount) * 1.001) * {"kB": 1e3, "MB": 1e6}[unit])  # it is said in four digits


def refused(model: nn.Module, batch: Any, memory: Any, loss: Any = loss_of, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        fit(model, batch, loss, memory, **options)
    return str(caught.value)


def within(name: str, share: float, **options: Any) -> tuple[nn.Module, Batch, Fitted]:
    """A model in a budget between the least (0) and a plain pass's (1)."""
    low, high = ends(name, options.get("accumulate", False))
    model, batch = build(name), batch_of(name)
    return model, batch, fit(model, batch, loss_of, f"{low + int(share * (high - low))}B", **options)


def gradients(model: nn.Module, passes: Callable[[], Any]) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    passes()
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def measured(model: nn.Module, batch: Batch, passes: Callable[[], Any]) -> int:
    with TensorBytes().seed(model, None, batch) as meter:
        passes()
    return meter.peak_bytes


def as_predicted(peak_bytes: int, fitted: Fitted) -> bool:
    """Never above, within the budget, and nearly all of what was predicted."""
    return 0.99 * fitted.plan.peak_bytes <= peak_bytes <= fitted.plan.peak_bytes <= fitted.memory_bytes


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_plain_ones_and_peaks_as_predicted_in_every_budget(name: str) -> None:
    plain = build(name)
    expected = gradients(plain, lambda: loss_of(plain, batch_of(name)).backward())
    peaks, times = [], []
    for share in (1.0, 0.5, 0.0):
        model, batch, fitted = within(name, share)
        with fitted.step():
            assert equal(gradients(model, lambda m=model, b=batch: loss_of(m, b).backward()), expected)
            model.zero_grad()
            peak = measured(model, batch, lambda m=model, b=batch: loss_of(m, b).backward())
        assert as_predicted(peak, fitted)
        peaks.append(peak)
        times.append(fitted.plan.extra_time)
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > peaks[-1]
    assert times == sorted(times) and times[0] == 0 < times[-1]


@settings(max_examples=40, deadline=None)
@given(chains(most=5, any_ends=True), st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_a_smaller_budget_has_no_higher_peak(chain: Chain, budgets: list[int]) -> None:
    front = by_peak(Rotor(), [chain], budgets)
    peaks = [plan.peak_bytes for plan in front]
    assert peaks == sorted(set(peaks), reverse=True)
    assert [plan.time_s for plan in front] == sorted(plan.time_s for plan in front)


def test_first_blocks_that_no_gradient_reaches_are_left_alone() -> None:
    models = [build("gpt2"), build("gpt2")]
    for model in models:
        for name, each in model.named_parameters():
            each.requires_grad_("h.2." in name or "h.3." in name)
    (plain, model), batch = models, batch_of("gpt2")
    expected = gradients(plain, lambda: loss_of(plain, batch).backward())
    plain.zero_grad()
    whole = fit(model, batch, loss_of, "1GB").plan
    assert whole.blocks == 2
    peak = measured(plain, batch, lambda: loss_of(plain, batch).backward())
    assert peak <= whole.plain_peak_bytes < 1.01 * peak
    fitted = fit(model, batch, loss_of, f"{whole.peak_bytes - 1}B")
    with fitted.step():
        assert equal(gradients(model, lambda: loss_of(model, batch).backward()), expected)
        model.zero_grad()
        assert as_predicted(measured(model, batch, lambda: loss_of(model, batch).backward()), fitted)


def test_several_chains_share_a_budget() -> None:
    plain = build("mae")
    expected = gradients(plain, lambda: loss_of(plain, batch_of("mae")).backward())
    model, batch = build("mae"), batch_of("mae")
    whole = fit(model, batch, loss_of, "1GB").plan
    fitted = fit(model, batch, loss_of, f"{(2 * whole.peak_bytes + whole.resident_bytes) // 3}B")
    assert 0 < fitted.plan.recomputed < fitted.plan.blocks == 6
    with fitted.step():
        assert equal(gradients(model, lambda: loss_of(model, batch).backward()), expected)
        model.zero_grad()
        assert as_predicted(measured(model, batch, lambda: loss_of(model, batch).backward()), fitted)


@pytest.mark.parametrize(("name", "named"), [("gpt2", False), ("vit", True)])
def test_accumulated_gradients_are_in_the_budget_named_or_found(name: str, named: bool) -> None:
    def passes(model: nn.Module, batch: Batch) -> None:
        for _ in range(3):
            loss_of(model, batch).backward()

    plain = build(name)
    expected = gradients(plain, lambda: passes(plain, batch_of(name)))
    low, high = ends(name, accumulate=True)
    model, batch = build(name), batch_of(name)
    fitted = fit(model, batch, loss_of, f"{(low + high) // 2}B", accumulate=named)
    with fitted.step():
        assert equal(gradients(model, lambda: passes(model, batch)), expected)
        model.zero_grad()
        assert measured(model, batch, lambda: passes(model, batch)) <= fitted.memory_bytes
    assert len(fitted.plans) == (1 if named else 2)


@pytest.mark.parametrize(("name", "inside"), [("gpt2", True), ("bert", False)])
def test_so_it_is_under_autocast_inside_the_loss_or_around(name: str, inside: bool) -> None:
    def bf16() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with bf16() if inside else nullcontext():
            return loss_of(model, batch)

    def one(model: nn.Module, batch: Batch) -> None:
        with nullcontext() if inside else bf16():
            value = loss(model, batch)
        value.backward()

    plain = build(name)
    expected = gradients(plain, lambda: one(plain, batch_of(name)))
    model, batch = build(name), batch_of(name)
    with nullcontext() if inside else bf16():
        plan = fit(model, batch, loss, "1GB").plan
        middle = plan.resident_bytes + int(0.6 * (plan.peak_bytes - plan.resident_bytes))
        fitted = fit(model, batch, loss, f"{middle}B")
    assert fitted.plan.recomputed
    with fitted.step():
        assert equal(gradients(model, lambda: one(model, batch)), expected)
        model.zero_grad()
        assert as_predicted(measured(model, batch, lambda: one(model, batch)), fitted)


@pytest.mark.parametrize(("examples", "length"), [(4, 30), (3, 20)])
def test_another_shape_has_a_plan_of_its_own_and_calls_nothing_of_the_user_s(examples: int, length: int) -> None:
    calls = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(batch["input_ids"].shape)
        return loss_of(model, batch)

    model, (_, high) = build("bert"), ends("bert")
    fitted = fit(model, batch_of("bert"), loss, f"{high}B")
    other, plain = batch_of("bert", examples, length), build("bert")
    expected = gradients(plain, lambda: loss_of(plain, other).backward())
    larger = examples * length > 4 * 24
    for _ in range(2):
        calls.clear()
        with fitted.step():
            assert equal(gradients(model, lambda: loss(model, other).backward()), expected)
        assert len(calls) == 1
        assert [plan.scaled for plan in fitted.plans.values()] == [False, larger]
    model.zero_grad()
    with fitted.step():
        assert measured(model, other, lambda: loss(model, other).backward()) <= fitted.memory_bytes
    assert [plan.recomputed > 0 for plan in fitted.plans.values()] == [False, larger]
    exact = fitted.plan_for(other)
    model.zero_grad()
    with fitted.step():
        peak = measured(model, other, lambda: loss(model, other).backward())
    assert not exact.scaled and 0.99 * exact.peak_bytes <= peak <= exact.peak_bytes <= fitted.memory_bytes


def test_an_optimizer_s_state_counts_as_it_is_or_as_adamw_s() -> None:
    model, batch = build("gpt2"), batch_of("gpt2")
    count = sum(each.numel() for each in model.parameters())
    bare = fit(model, batch, loss_of, "1GB").plan
    for make, factor in ((torch.optim.AdamW, 8), (lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9), 4)):
        optimizer = make(model.parameters())
        unstepped = fit(model, batch, loss_of, "1GB", optimizer=optimizer).plan
        assert unstepped.peak_bytes - bare.peak_bytes == 8 * count
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        stepped = fit(model, batch, loss_of, "1GB", optimizer=optimizer).plan
        assert stepped.peak_bytes - bare.peak_bytes == factor * count


def test_it_says_what_it_will_cost_before_it_runs() -> None:
    model, _, fitted = within("llama", 0.4)
    plan = fitted.plan
    assert str(fitted) == f"LlamaForCausalLM: {plan}"
    assert f"{plan.recomputed} of 4 blocks run again, for {plan.extra_time:.1%} more time" in str(plan)
    assert f"a pass takes {sized(plan.peak_bytes)} of {sized(plan.memory_bytes)} at its highest" in str(plan)
    clock = fit(model, batch_of("llama"), loss_of, f"{plan.memory_bytes}B", seconds="clocked")
    assert clock.plan.peak_bytes <= plan.memory_bytes
    assert "no block runs again" in str(within("llama", 1.0)[2])


# no trace -------------------------------------------------------------------------------------------------------------


def state(model: nn.Module) -> list[Any]:
    tensors = [each.clone() for each in (*model.parameters(), *model.buffers())]
    tensors += [each.grad.clone() for each in model.parameters() if each.grad is not None]
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]
    own = ["forward" in vars(each) for each in model.modules()]
    return [tensors, [torch.get_rng_state()], hooks, own, [each.training for each in model.modules()]]


def same(now: list[Any], before: list[Any]) -> bool:
    return now[2:] == before[2:] and all(equal(a, b) for a, b in zip(now[:2], before[:2], strict=True))


class Sequence(nn.Module):
    """Blocks that are no chain: every block gets the sum of the earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2))
        for layer in self.layers:
            layer.attn = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "below the weights": ("100kB", loss_of, "the weights alone take .* so that no schedule helps: raise memory"),
    "too small": ("400kB", loss_of, "does not fit in 400 kB: its least is .* of weights, .* a smaller batch would"),
    "no unit": ("8", loss_of, "8 of what. Write 8GB or 8GiB"),
    "a number": (8, loss_of, "8 of what"),
    "a vector": ("8GB", lambda m, b: m(**b).logits.mean(-1), r"gives a value of shape \[4, 24\]: make it"),
    "a pair": ("8GB", lambda m, b: (loss_of(m, b), 1), "gives a value of type tuple"),
    "a float": ("8GB", lambda m, b: loss_of(m, b).item(), "gives a value of type float"),
    "detached": ("8GB", lambda m, b: loss_of(m, b).detach(), "has no gradient"),
    "twice": ("8GB", lambda m, b: loss_of(m, b) + loss_of(m, b), "calls the model 2 times"),
    "inside": ("8GB", lambda m, b: m.transformer(b["input_ids"])[0].mean(), "calls the model 0 times"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_a_sentence_and_leaves_the_model_as_it_was(case: str) -> None:
    memory, loss, sentence = REFUSED[case]
    model, batch = build("gpt2"), batch_of("gpt2")
    loss_of(model, batch).backward()
    before = state(model)
    with pytest.raises(ValueError, match=sentence) as caught:
        fit(model, batch, loss, memory)
    assert "\n" not in str(caught.value) and same(state(model), before)


def test_what_would_help_comes_with_its_bytes() -> None:
    model, batch = build("gpt2"), batch_of("gpt2")
    count = sum(each.numel() for each in model.parameters())
    said = refused(model, batch, "600kB", optimizer=torch.optim.AdamW(model.parameters()))
    assert f"{8 * count / 1e3:.4g} kB of optimizer state" in said
    assert f"8-bit optimizer states (up to {6 * count / 1e3:.4g} kB less)" in said
    assert f"weights and gradients in bf16 (up to {4 * count / 1e3:.4g} kB less)" in said
    assert f"LoRA (up to {12 * count / 1e3:.4g} kB less)" in said
    model.resize_token_embeddings(5000)
    said = refused(model, batch, "4MB")
    assert "no schedule helps against the" in said and "outside the blocks (between the last block and its" in said
    plan = fit(model, batch, loss_of, "1GB").plan
    assert not fit(model, batch, loss_of, f"{plan.peak_bytes}B").plan.recomputed


def test_blocks_that_are_no_chain_run_again_too() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean()

    model, batch = Sequence(), torch.randn(8, 16, 8, requires_grad=True)
    expected = gradients(model, lambda: loss(model, batch).backward())
    whole = fit(model, batch, loss, "8GB").plan
    fitted = fit(model, batch, loss, f"{whole.peak_bytes - 1}B")
    with fitted.step():
        assert fitted.plan.recomputed and equal(gradients(model, lambda: loss(model, batch).backward()), expected)


def test_what_has_no_blocks_or_is_no_single_eager_model_is_refused() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean()

    assert "no repeated modules ran in Linear" in refused(nn.Linear(2, 2), torch.ones(2, 2), "8GB", loss)
    model, batch = build("gpt2"), batch_of("gpt2")
    assert "DataParallel runs copies" in refused(nn.DataParallel(model), batch, "8GB")
    assert "counted or clocked" in refused(model, batch, "8GB", seconds="guessed")
    model.gradient_checkpointing_enable()
    assert "switch its gradient checkpointing off" in refused(model, batch, "8GB")
    model.gradient_checkpointing_disable()
    model._compiled_call_impl = model.forward  # as model.compile() has it
    assert "compile its blocks" in refused(model, batch, "8GB")


@pytest.mark.parametrize("accumulate", [False, True])
def test_planning_leaves_no_trace_and_acts_on_no_arriving_gradient(accumulate: bool) -> None:
    model, batch = build("bert"), batch_of("bert")
    arrived = []
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda p: arrived.append(p))
    loss_of(model, batch).backward()
    seen, before = len(arrived), state(model.eval())
    fitted = fit(model, batch, loss_of, "8GB", accumulate=accumulate)
    assert same(state(model), before) and len(arrived) == seen
    model.train()
    with fitted.step():
        loss_of(model, batch).backward()
    assert len(arrived) == 2 * seen and state(model)[2:4] == before[2:4]


def test_passes_without_gradients_are_plain_ones() -> None:
    model, batch, fitted = within("vit", 0.5)
    with fitted.step(), torch.no_grad():
        assert torch.equal(model.eval()(batch["images"][:2]), copy.deepcopy(model)(batch["images"][:2]))


# others' loops --------------------------------------------------------------------------------------------------------


class Texts(torch.utils.data.Dataset[Batch]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Batch:
        return {key: value[index] for key, value in batch_of("gpt2", 12).items()}


def test_in_the_trainer_of_transformers(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    ends_at = []
    for budget in (False, True):
        model = build("gpt2")
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        if budget:
            fitted = fit(model, batch_of("gpt2"), loss_of, f"{sum(ends('gpt2', accumulate=True)) // 2}B")
            fitted.install()
        Trainer(model, arguments, train_dataset=Texts()).train()
        ends_at.append([each.detach().clone() for each in model.parameters()])
    assert any(plan.recomputed for plan in fitted.plans.values())
    fitted.remove()
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert equal(*ends_at)


def test_the_example_of_its_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (each for each in doctest.DocTestFinder().find(fitting, globs={}) if each.examples)
    names = {"leantrain": leantrain, "model": build("gpt2"), "batch": batch_of("gpt2"), "loss": loss_of}
    exec("".join(each.source for each in example.examples), names)
    assert "no block runs again" in capsys.readouterr().out


# values that leave for the host ---------------------------------------------------------------------------------------


def attentive(model: nn.Module, batch: Batch) -> Tensor:
    """A loss of what leaves blocks beside their outputs, too."""
    out = model(**batch, output_attentions=True)
    return out.loss + out.attentions[1].pow(2).sum()


@pytest.mark.parametrize("loss", [loss_of, attentive])
def test_values_leave_for_the_host_where_that_is_sooner_and_gradients_stay_the_same(
    loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "clocked", lambda chain, *_, **__: chain)  # as of 1e12 FLOPs a second, in any noise
    plain, model, batch = build("gpt2"), build("gpt2"), batch_of("gpt2")
    for each in (plain, model):
        each.set_attn_implementation("eager")
    expected = gradients(plain, lambda: loss(plain, batch).backward())
    memory = int(0.6 * fit(model, batch, loss, "1GB").plan.plain_peak_bytes)
    fitted = fit(model, batch, loss, f"{memory}B", seconds="clocked", offload="100TB/s")
    assert fitted.plan.moved_bytes and "leave for the host" in str(fitted)
    out = fitted.tier.bytes_out
    with fitted.step():
        assert equal(gradients(model, lambda: loss(model, batch).backward()), expected)
        assert fitted.tier.bytes_out - out == fitted.tier.bytes_in - out == fitted.plan.moved_bytes
        model.zero_grad()
        peak = measured(model, batch, lambda: loss(model, batch).backward())
        assert peak <= fitted.plan.peak_bytes <= memory  # values come back one by one
        loss(model, batch)  # nobody goes back
    assert fitted.tier.held_bytes == 0
    slow = fit(model, batch, loss, f"{memory}B", seconds="clocked", offload="1kB/s").plan
    assert slow.recomputed and not slow.moved_bytes
    assert not fit(model, batch, loss, "8GB", seconds="clocked", offload="100TB/s").plan.changes


def test_offload_says_what_it_needs() -> None:
    model, batch = build("gpt2"), batch_of("gpt2")
    assert "seconds='clocked'" in refused(model, batch, "8GB", offload="25GB/s")
    assert "host's memory is the device's own" in refused(model, batch, "8GB", seconds="clocked", offload="measured")
    assert "no amount of bytes" in refused(model, batch, "8GB", seconds="clocked", offload="fast")


def test_what_a_model_sets_up_at_its_first_call_is_set_up_once() -> None:
    """transformers' recorders of attentions are hooks, and an attribute says that they are there."""
    fresh, fitted, batch = build("gpt2"), build("gpt2"), batch_of("gpt2")
    for each in (fresh, fitted):
        each.set_attn_implementation("eager")
    fit(fitted, batch, attentive, "1GB")
    assert len(fitted(**batch, output_attentions=True).attentions) == len(
        fresh(**batch, output_attentions=True).attentions
    )


def test_where_a_plain_pass_does_not_fit_torch_s_checkpoint_is_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build("llama"), batch_of("llama")
    attributes = [dict(vars(each)) for each in model.modules()]
    checkpointed: list[bool] = []

    def no_room(model: nn.Module, forward: Any, *running: Any) -> Any:
        if not running and not checkpointed:
            checkpointed.append(False)
            raise torch.OutOfMemoryError("no room")
        if not running:
            checkpointed.append(all("forward" in vars(each) for each in model.model.layers))
        return tried(model, forward, *running)

    tried = fitting.tried
    monkeypatch.setattr(fitting, "tried", no_room)
    low, high = ends("llama", False)
    assert fit(model, batch, loss_of, f"{(low + high) // 2}B").plan.recomputed and checkpointed == [False, True]
    assert [dict(vars(each)) for each in model.modules()] == attributes
