"""What ``leantrain.fit`` promises, measured: ``python -m tests.numbers.fit_promises peaks|time|overhead``.

    peaks       generated models and budgets: the measured peak over the budget and over the prediction, and whether a
                smaller budget has ever a higher peak
    time        eight families within three budgets: a fitted pass over a plain one, predicted by the clock and measured
    overhead    a pass in which nothing runs again over a plain one, processor time

Times are of passes by turns, medians of their ratios; an idle machine makes them worth reading.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import timm
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from leantrain.fitting import Fitted, fit
from suite.chain.rerun import Reruns
from suite.meters.tensors import TensorBytes

Made = tuple[nn.Module, dict[str, Tensor]]
SHARES = (0.0, 0.5, 0.8)
ROUNDS = 15


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    if "images" in batch:
        return F.cross_entropy(model(batch["images"]), batch["classes"])
    return model(**batch).loss


def texts(examples: int, length: int, **more: Any) -> dict[str, Tensor]:
    tokens = torch.randint(3, 64, (examples, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens, **more}


def of_kind(kind: str, depth: int, width: int, examples: int, length: int) -> Made:
    """A model of ``kind``, its batch with it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 4, "intermediate_size": 3 * width}
    encoder = {"d_model": width, "d_kv": width // 4, "d_ff": 2 * width, "num_layers": depth, "num_heads": 4}
    text = {"vocab_size": 64, "use_cache": False, **sizes}
    batch = texts(examples, length)
    models: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**text)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**text, head_dim=width // 4, num_key_value_heads=2)),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=64, n_embd=width, n_layer=depth, n_head=4, n_positions=length, use_cache=False)
        ),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(vocab_size=64, **sizes)),
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=64, **encoder, decoder_start_token_id=0)),
        "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**text, num_local_experts=4, num_key_value_heads=2)),
        "vit": lambda: timm.create_model(
            "vit_tiny_patch16_224", img_size=64, patch_size=8, depth=depth, embed_dim=width, num_heads=4, num_classes=10
        ),
        "convnext": lambda: timm.create_model(
            "convnext_atto", depths=[1, 1, depth, 1], dims=[width // 4, width // 2, width, width], num_classes=10
        ),
    }
    if kind in ("vit", "convnext"):
        draw = torch.Generator().manual_seed(0)
        batch = {"images": torch.randn(examples, 3, 64, 64, generator=draw), "classes": torch.arange(examples) % 10}
    return models[kind]().train(), batch


KINDS = ("llama", "qwen3", "gpt2", "bert", "t5", "mixtral", "vit", "convnext")


def plans_between(model: nn.Module, batch: Any, shares: Any, **options: Any) -> Iterator[Fitted]:
    """Fitted within budgets that are shares of the way from the least peak to a plain pass's."""
    widest = fit(model, batch, loss_of, "64GB", verify=False)
    (profile,) = widest._profiles.values()
    least_bytes = widest.plan.resident_bytes + profile.front[-1].peak_bytes
    for share in shares:
        budget = least_bytes + int(share * (widest.plan.peak_bytes - least_bytes)) + int(0.002 * least_bytes)
        yield fit(model, batch, loss_of, f"{budget}B", **options)


def peak_of(fitted: Fitted, model: nn.Module, batch: Any) -> int:
    model.zero_grad()
    with fitted.step(), TensorBytes().seed(model, None, batch) as meter:
        loss_of(model, batch).backward()
    model.zero_grad()
    return meter.peak_bytes


def peaks(cases: int) -> None:
    draw = random.Random(0)
    over, ratios, falls, tried = 0, list[float](), 0, 0
    while tried < cases:
        kind = draw.choice(KINDS)
        depth, width = draw.randint(2, 6), 16 * draw.randint(2, 5)
        model, batch = of_kind(kind, depth, width, draw.randint(1, 6), 8 * draw.randint(2, 6))
        shares = sorted(draw.random() for _ in range(5))
        before = 0
        for fitted in plans_between(model, batch, shares):
            measured = peak_of(fitted, model, batch)
            over += measured > fitted.memory_bytes
            ratios.append(measured / fitted.plan.peak_bytes)
            falls += measured < before
            before, tried = measured, tried + 1
        print(f"{tried}: {kind} {depth} x {width}, measured over predicted {ratios[-5:]}", flush=True)
    within = sum(ratio >= 0.99 for ratio in ratios)
    print(f"{tried} cases: {over} over their budget, {falls} higher within a smaller one")
    print(f"measured over predicted: median {statistics.median(ratios):.4f}, {min(ratios):.4f} to {max(ratios):.4f}")
    print(f"{within} of {tried} within 1 %")


def passes(model: nn.Module, batch: Any, running: Callable[[], Any], clock: Callable[[], float]) -> float:
    model.zero_grad()
    began = clock()
    with running():
        loss_of(model, batch).backward()
    return clock() - began


def ratio_of(model: nn.Module, batch: Any, running: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Of passes by turns."""
    ratios = []
    for number in range(ROUNDS + 2):
        ways = [nullcontext, running][:: 1 if number % 2 else -1]
        took = {way: passes(model, batch, way, clock) for way in ways}
        ratios.append(took[running] / took[nullcontext])
    return statistics.median(ratios[2:])


def times() -> None:
    for kind in KINDS:
        model, batch = of_kind(kind, 6, 128, 4, 128)
        for fitted in plans_between(model, batch, SHARES, seconds="clocked"):
            runs = Reruns(fitted.order, fitted.plan.runs)
            measured = ratio_of(model, batch, runs.installed, time.perf_counter)
            said = 1 + fitted.plan.extra_time
            print(
                f"{kind}: {fitted.plan.recomputed} of {fitted.plan.blocks} again, predicted {said:.3f}, measured "
                f"{measured:.3f}, off by {said / measured - 1:+.1%}",
                flush=True,
            )


def overheads() -> None:
    for kind in KINDS:
        model, batch = of_kind(kind, 6, 128, 4, 128)
        fitted = fit(model, batch, loss_of, "64GB")
        measured = ratio_of(model, batch, fitted.step, time.process_time)
        print(f"{kind}: nothing of {fitted.plan.blocks} again, processor time {measured - 1:+.2%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("peaks", "time", "overhead"))
    parser.add_argument("--cases", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    if arguments.what == "peaks":
        peaks(arguments.cases)
    else:
        {"time": times, "overhead": overheads}[arguments.what]()


if __name__ == "__main__":
    main()
