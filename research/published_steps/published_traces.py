"""Steps that others published, traced: models built from what a row says, one step each, on tensors without values.

    python -m research.published_steps.published_traces

traces what has no trace yet, and writes all of them beside the rows.

A step is as its source's scripts make it, not as this suite's baselines do: per-tensor SGD that keeps its gradients,
logits widened or not, kernels that fuse a norm, a rotation or the loss (which read and write each operand once: an
operator of the same bytes stands for one). Limits. Of a step of several ranks one rank's operators, without its
collectives.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from research.published_steps.eight_bits import EightBitLinear
from research.published_steps.published_rows import Case, EightBits, Traced, cases, rows, traces, write_traces
from research.published_steps.tensor_rank import FusedLoss, FusedNorm, Rotated, rank_parts
from suite.measure.at_scale import weightless as values_of_sizes
from suite.measure.at_scale.weightless import replaced, weightless
from suite.measure.contenders.compiled_graphs import partitioned_graphs
from suite.meters.operators import OperatorTrace
from suite.meters.tensors import TensorBytes
from suite.record.operator_counts import TracedStep, deepened
from suite.topics.modelled_time.traced import compiled_graphs_marked

CHUNKS = 8
LARGEST_POSITIONS = 1 << 20
"""Of a batch: a model asks whether its positions are of one sequence."""
DEPTH = 2
"""Layers of the shallower model that is traced."""
PARTS: Any = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocabulary",
}
NAMES: Any = {
    "gpt2": {"n_layer": "layers", "n_embd": "hidden", "n_head": "heads", "n_inner": "ffn", "vocab_size": "vocabulary"},
    "gpt_bigcode": {
        "n_layer": "layers",
        "n_embd": "hidden",
        "n_head": "heads",
        "n_inner": "ffn",
        "vocab_size": "vocabulary",
    },
    "opt": {
        "num_hidden_layers": "layers",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "ffn_dim": "ffn",
        "vocab_size": "vocabulary",
        "word_embed_proj_dim": "hidden",
    },
}
"""What configurations call a case's sizes, where it is not PARTS."""
PLAIN: Any = {
    "gpt2": {"activation_function": "gelu"},
    "mistral": {"sliding_window": None},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0},
}
NO_DROPOUT = dict.fromkeys(
    (
        "attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "attention_dropout",
        "hidden_dropout_prob",
        "dropout",
        "attention_probs_dropout_prob",
        "activation_dropout",
    ),
    0.0,
)


def traced(case: Case, peaks_wanted: bool = True) -> Traced:
    """Returns the operators of one step of the case and its peak (0 where it is not wanted), or why there are none.

    Layers are equal, so two depths give every other one, in a tenth of the time. A model whose layers
    differ (``layers`` is 0) is traced whole.
    """
    more = case.layers - DEPTH - 1
    try:
        if not case.layers:
            step, peaks, _ = _traced(case, peaks_wanted)
            return Traced(step, max(peaks, default=0))
        (shallow, before, kept_before), (deeper, now, kept_now) = (
            _traced(replace(case, layers=layers), peaks_wanted) for layers in (DEPTH, DEPTH + 1)
        )
    except Exception as error:  # whatever a library does with tensors without values: the row says so
        return Traced(why_not=f"its step cannot be traced: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
    peaks = [b + more * (b - a) for a, b in zip(before, now, strict=True)]
    return Traced(deepened(shallow, deeper, more), max(peaks, default=0), kept_now - kept_before)


@lru_cache(4)  # of cases that differ in their depth alone
def _traced(case: Case, peaks_wanted: bool) -> tuple[TracedStep, list[int], int]:
    """Returns the step, the peaks of its forward pass, backward pass and update (each grows evenly with depth), and
    what the forward pass leaves behind."""
    trace = OperatorTrace()
    peaks = []
    with ExitStack() as stack:
        stack.enter_context(compiled_graphs_marked(trace))
        stack.enter_context(replaced(values_of_sizes, "LARGEST_KEPT", LARGEST_POSITIONS))
        stack.enter_context(weightless("cuda"))
        if case.compiled:
            stack.enter_context(partitioned_graphs())
        if case.repeated:
            from transformers.integrations import sdpa_attention

            stack.enter_context(replaced(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False))
        model, parts, held = _prepared(case)
        for part in parts:
            part()
        with trace:
            for part in parts:
                part()
        left_bytes = 0
        if peaks_wanted and case.library == "rank":  # gradients and the optimizer's states are counted apart
            with TensorBytes().seed(model, *held) as meter:
                parts[0]()
                parts[1]()
            peaks, left_bytes = [meter.peak_bytes], meter.peak_by_kind["activations"]
        elif peaks_wanted:
            for part in parts:
                with TensorBytes().seed(model, *held) as meter:
                    part()
                peaks.append(meter.peak_bytes)
    return trace.step(), peaks, left_bytes


def _prepared(case: Case) -> tuple[nn.Module, list[Callable[[], None]], tuple[Any, Any]]:
    """Returns the model, the parts of a step (forward, backward, update), and what else is held: optimizer and
    batch."""
    if case.library == "rank":
        return rank_parts(case)
    model = _timm(case) if case.library == "timm" else _transformers(case)
    model = model.to(getattr(torch, case.parameters)).train(not case.forward_only or case.dropout)
    if case.quantised:
        _quantise(model, case)
    if case.eight_bits is not None:
        _multiply_eight_bits(model, case.eight_bits)
    if case.method:
        model = _with_method(model, case)
    elif case.adapters:
        _adapt(model, case)
    if case.fused:
        _fuse(model)
    if case.recomputed:
        _recompute(model, case.to_its_end)
    batch = _batch(case, model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _optimizer(case, trained)
    running = torch.compile(model) if case.compiled else model
    losses: list[Tensor] = []

    def forward() -> None:
        model.zero_grad() if optimizer is None else optimizer.zero_grad(set_to_none=case.optimizer != "sgd")
        with _precision(case), torch.no_grad() if case.forward_only else nullcontext():
            losses.append(_loss(case, running, batch))

    def backward() -> None:
        losses.pop().backward()

    def update() -> None:
        if case.clipped:
            nn.utils.clip_grad_norm_(trained, 1.0)
        if optimizer is not None:
            optimizer.step()

    parts = [forward, losses.clear] if case.forward_only else [forward, backward, update]
    return model, parts, (optimizer, batch)


def _precision(case: Case) -> Any:
    return torch.autocast("cpu", getattr(torch, case.autocast)) if case.autocast else nullcontext()


def _with_method(model: nn.Module, case: Case) -> nn.Module:
    """Returns the model with peft's own adapters, by the settings that the case has."""
    import peft  # whoever traces these rows has it: a peer, no dependency

    name, _, settings = case.method.partition(" ")
    config: Any = peft.get_peft_config({"peft_type": name, "task_type": "CAUSAL_LM", **json.loads(settings)})
    adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def _optimizer(case: Case, trained: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    if case.optimizer == "none":
        return None
    if case.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=1e-3, momentum=0.9, foreach=False)
    return torch.optim.AdamW(trained, lr=1e-4, foreach=True)


def _batch(case: Case, model: nn.Module) -> tuple[Tensor, Tensor]:
    if case.length:
        ids = torch.empty(case.batch, case.length, dtype=torch.int64)
        return ids, ids.clone()
    size: Any = getattr(model, "default_cfg")["input_size"]  # noqa: B009  timm gives every model one
    return torch.empty(case.batch, *size), torch.empty(case.batch, dtype=torch.int64)


# models -------------------------------------------------------------------------------------------------------------


def _timm(case: Case) -> nn.Module:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(case.attention != "eager")
    try:
        depth: dict[str, Any] = {"depth": case.layers} if case.layers else {}
        return timm.create_model(case.model, **depth)
    finally:
        set_fused_attn(True)


def _transformers(case: Case) -> nn.Module:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForTokenClassification,
    )

    names = NAMES.get(case.model, PARTS)
    sizes = {ours: getattr(case, theirs) for ours, theirs in names.items()}
    positions = {name: max(case.length, 512) for name in ("n_positions", "max_position_embeddings")}
    config = AutoConfig.for_model(
        case.model,
        **sizes,
        **positions,
        **PLAIN.get(case.model, {}),
        **({} if case.dropout else NO_DROPOUT),
        use_cache=False,
        tie_word_embeddings=case.tied,
        **({"num_labels": case.answers} if case.answers else {}),
    )
    kind: Any = AutoModelForMaskedLM if case.model == "bert" else AutoModelForCausalLM
    kind = AutoModelForTokenClassification if case.answers else kind
    model: nn.Module = kind.from_config(config, attn_implementation=case.attention)
    return model


def _loss(case: Case, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    if not case.length:
        return F.cross_entropy(model(inputs), targets)
    if case.chunked_loss:
        hidden = model.get_decoder()(inputs)[0]
        loss: Tensor = _ChunkedLoss.apply(hidden, model.get_output_embeddings().weight)
        return loss
    head = None if case.compiled or case.forward_only else model.get_output_embeddings()
    with _held_inputs(head):  # as a model does that computes the loss of its own outputs
        return _loss_of_logits(case, model, inputs, targets)


@contextmanager
def _held_inputs(module: nn.Module | None) -> Iterator[None]:
    """Keeps what the module is called with until the end."""
    held: list[Any] = []
    hook = None if module is None else module.register_forward_pre_hook(lambda _, inputs: held.append(inputs))
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def _loss_of_logits(case: Case, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs).logits
    if case.method:  # virtual tokens come first, and have no targets
        logits = logits[:, -inputs.shape[1] :]
    if case.forward_only:
        return logits
    wide = logits.float() if case.wide_logits else logits
    if not case.logits_held:
        del logits
    if case.model == "bert":
        return F.cross_entropy(wide.view(-1, wide.shape[-1]), targets.view(-1))
    shifted = wide[:, :-1].contiguous()
    flat = shifted.view(-1, shifted.shape[-1])
    if case.fused:
        loss = FusedLoss.apply(flat)
        return loss
    return F.cross_entropy(flat, targets[:, 1:].reshape(-1))


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    longest = max((module for module in model.modules() if isinstance(module, nn.ModuleList)), key=len)
    yield from longest


def _recompute(model: nn.Module, reentrant: bool) -> None:
    """Puts every block under torch.utils.checkpoint; frozen models have their first block's input ask for a
    gradient."""
    whole: Any = model
    embedding = whole.get_input_embeddings()
    embedding.register_forward_hook(
        lambda module, inputs, output: output.requires_grad_(True) if output.is_leaf else output
    )
    for block in _blocks(model):
        forward = block.forward

        def again(*args: Any, _forward: Any = forward, **kwargs: Any) -> Any:
            if not reentrant:
                return checkpoint(_forward, *args, use_reentrant=False, **kwargs)
            return checkpoint(partial(_forward, **kwargs), *args, use_reentrant=True)

        block.forward = again


class _Dequantised(torch.autograd.Function):
    """Stands for a product with weights of four bits: their kernel reads them and writes them wide, a product
    follows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        wide = packed[:, None].expand(-1, 2).to(x.dtype).view(shape)
        return F.linear(x, wide, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        wide = packed[:, None].expand(-1, 2).to(gradient.dtype).view(ctx.shape)
        return gradient @ wide, None, None, None


class QuantisedLinear(nn.Module):
    """Stands for a frozen linear layer whose weights are held in four bits, with a scale for each 64."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        elements = linear.weight.numel()
        self.register_buffer("packed", torch.empty(elements // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(elements // 64, dtype=torch.uint8))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        done: Tensor = _Dequantised.apply(x, self.packed, bias, (self.out_features, self.in_features))
        return done.to(dtype)


def _quantise(model: nn.Module, case: Case) -> None:
    head = model.get_output_embeddings()  # type: ignore[operator]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child is not head:
                setattr(parent, name, QuantisedLinear(child))
    if "wide" in case.quantised:
        for module in model.modules():
            if type(module).__name__.endswith("Norm"):
                module.float()


def _multiply_eight_bits(model: nn.Module, how: EightBits) -> None:
    from transformers.pytorch_utils import Conv1D

    for block in _blocks(model):
        for parent in list(block.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, Conv1D):  # which keeps its weight [in, out]
                    weight = nn.Parameter(child.weight.new_empty(child.weight.shape[::-1]))
                    setattr(parent, name, EightBitLinear(weight, child.bias, how))


class _Adapted(nn.Module):
    """Stands for a frozen linear layer with a low-rank update beside it, as torch's operators make it."""

    def __init__(self, linear: nn.Linear | QuantisedLinear, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, linear.out_features, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        plain: Tensor = self.linear(x)
        return plain + (self.up(self.down(x.to(self.down.weight.dtype))) * 2.0).to(plain.dtype)


def _adapt(model: nn.Module, case: Case) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    dtype = torch.float32  # as peft keeps them, whatever the model's own are
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear | QuantisedLinear) and name in case.adapted:
                setattr(parent, name, _Adapted(child, case.adapters, dtype))


# kernels that fuse: an operator of the same bytes stands for each ----------------------------------------------------


class _ChunkedLoss(torch.autograd.Function):
    """Computes the head, the loss and their gradients, some tokens at a time, in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        of_hidden = torch.empty_like(flat)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = []
        for part, gradient in zip(flat.chunk(CHUNKS), of_hidden.chunk(CHUNKS)):
            logits = part @ weight.to(part.dtype).T
            losses.append(logits.sum(-1, dtype=torch.float32).mean())
            logits.neg_()
            torch.mm(logits, weight.to(part.dtype), out=gradient)
            if of_weight is not None:
                of_weight += (logits.T @ part).to(of_weight.dtype)
        ctx.gradients = of_hidden.view_as(hidden), of_weight
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = ctx.gradients
        return gradients


def _fuse(model: nn.Module) -> None:
    """Makes RMS norms and rotations one kernel each."""
    for submodule in model.modules():
        if type(submodule).__name__.endswith("RMSNorm"):
            submodule.forward = lambda x, _norm=submodule: FusedNorm.apply(x, _norm.weight)
    module = sys.modules[type(model).__module__]
    if hasattr(module, "apply_rotary_pos_emb"):
        vars(module)["apply_rotary_pos_emb"] = _rotated  # undone by `_restored`


def _rotated(q: Tensor, k: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return Rotated.apply(q), Rotated.apply(k)


@contextmanager
def _restored() -> Iterator[None]:
    """Puts the libraries' own rotations back, afterwards."""
    import transformers

    names = [name for name in sys.modules if name.startswith(f"{transformers.__name__}.models.")]
    with ExitStack() as stack:
        for name in names:
            module = sys.modules[name]
            if hasattr(module, "apply_rotary_pos_emb"):
                stack.enter_context(replaced(module, "apply_rotary_pos_emb", module.apply_rotary_pos_emb))
        yield


def trace_missing(seconds: float = 1e9, only: str = "") -> int:
    """Traces cases that have no trace until so many seconds of processor time are over, and writes all.

    How many are still to be traced.
    """
    with_peaks = {row.case.key for row in rows() if row.case is not None and (row.peak_bytes or row.memory)}
    times = [row for row in rows() if row.measured_s or row.power_w]
    timed = {case.key for row in times for case in (row.case, row.deeper) if case is not None}
    began, known = time.process_time(), dict(traces())
    missing = [case for case in cases() if case.key not in known and only in f"{case.library} {case.model}"]
    alike = Counter(untraced.model for untraced in missing)
    missing.sort(
        key=lambda untraced: (
            untraced.library == "rank",
            untraced.compiled,
            alike[untraced.model],
            untraced.tensor_ranks,
            untraced.batch,
            untraced.hidden,
        )
    )  # the rarer and the quicker first
    done = 0
    for case in missing:
        if time.process_time() - began > seconds:
            break
        if case.library == "transformers":
            import importlib

            importlib.import_module(f"transformers.models.{case.model}.modeling_{case.model}")
        with _restored():
            got = traced(case, case.key in with_peaks)
        known[case.key] = got if case.key in timed else replace(got, step=None)
        done += 1
        took = time.process_time() - began
        if done % 100 == 0:
            _written(known)
        print(f"{took:6.1f} s {case.library} {case.model} {case.batch}x{case.length} {got.why_not}", flush=True)
    _written(known)
    return len(missing) - done


def _written(known: dict[str, Traced]) -> None:
    traces.cache_clear()  # another process may have written since
    wanted = {case.key for case in cases()}
    write_traces({key: traced for key, traced in {**traces(), **known}.items() if key in wanted})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m research.published_steps.published_traces",
        description="traces the steps of published rows that have no trace, and keeps no others",
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="of processor time, at most")
    parser.add_argument("--only", default="", help="a part of 'library model'")
    chosen = parser.parse_args()
    print(trace_missing(chosen.seconds, chosen.only), "to be traced")
