"""What ``fit`` promises of autograd: whatever leaves a block, however gradients are asked for, they are plain ones."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leantrain.fitting import Fitted, fit
from suite.meters.tensors import TensorBytes
from tests.leantrain.families import FAMILIES, loss_of, seeded

torch.set_num_threads(1)  # on models this small, threads cost more than they save

Batch = dict[str, Any]
Loss = Callable[[nn.Module, Batch], Tensor]
BUDGETS = {"least": -1, "middle": 1, "none": 0}  # places among the plans, from the fastest on


@cache
def fitted_family(name: str) -> tuple[nn.Module, Batch, Fitted]:
    """One of eight families, attention in the open, without caches."""
    model, batch = FAMILIES[name]()
    if name != "vit_timm":
        model.set_attn_implementation("eager")
    for module in model.modules():
        if hasattr(vars(module).get("config"), "use_cache"):
            module.config.use_cache = False
    return model, batch, fit(model, batch, loss_of, "1GB", verify=False)


@contextmanager
def within(fitted: Fitted, budget: str) -> Iterator[None]:
    """Steps with as much memory as one of the plans takes."""
    (profile,) = fitted._profiles.values()
    plan = profile.front[BUDGETS[budget]]
    fitted.memory_bytes = fitted.plan.resident_bytes + plan.peak_bytes
    fitted.plans.clear()
    with fitted.step():
        yield
    again = [plan.recomputed > 0 for plan in fitted.plans.values()]
    assert again and all(again) == (budget != "none")


@contextmanager
def checkpointed(blocks: list[nn.Module]) -> Iterator[None]:
    """Each block under torch's own checkpoint, which stands for what a rerun may do."""
    distinct = list({id(block): block for block in blocks}.values())
    for block in distinct:

        def again(*args: Any, own: Any = block.forward, **kwargs: Any) -> Any:
            return checkpoint(own, *args, use_reentrant=False, **kwargs)

        block.forward = again
    try:
        yield
    finally:
        for block in distinct:
            del block.forward


def gradients(leaves: list[Tensor], one_pass: Callable[[], Any]) -> list[Tensor | None]:
    for leaf in leaves:
        leaf.grad = None
    seeded(3)
    one_pass()
    return held(leaves)


def held(leaves: list[Tensor]) -> list[Tensor | None]:
    return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def equal(ours: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    pairs = list(zip(ours, theirs, strict=True))
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


# side outputs ---------------------------------------------------------------------------------------------------------


def named(*names: str) -> Any:
    """Side outputs that the model returns on request, perhaps of several stacks."""

    @contextmanager
    def asked(_: list[nn.Module], leaf: Tensor) -> Iterator[Loss]:
        def loss(model: nn.Module, batch: Batch) -> Tensor:
            outputs = model(**batch, **{f"output_{names[0]}": True})
            found = [each for name in names for each in outputs.get(name) or () if each is not None]
            assert found
            return outputs.loss + sum(each.square().mean() for each in found) + leaf

        yield loss

    return asked


def inner(block: nn.Module) -> nn.Module:
    """A projection inside of a block."""
    return next(each for each in block.modules() if type(each).__name__ in ("Linear", "Conv1D"))


@contextmanager
def attribute(blocks: list[nn.Module], leaf: Tensor) -> Iterator[Loss]:
    """Each block keeps a tensor on a module."""
    modules = [inner(block) for block in blocks]
    kinds = [type(module) for module in modules]
    for module, kind in zip(modules, kinds, strict=True):

        def forward(self: Any, *args: Any, kind: Any = kind) -> Tensor:
            self.kept = kind.forward(self, *args)
            return self.kept

        module.__class__ = type(kind.__name__, (kind,), {"forward": forward})

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return loss_of(model, batch) + sum(module.kept.square().mean() for module in modules) + leaf

    yield loss
    for module, kind in zip(modules, kinds, strict=True):
        module.__class__ = kind
        del module.kept


@contextmanager
def hook(blocks: list[nn.Module], leaf: Tensor) -> Iterator[Loss]:
    """A forward hook inside of each block collects outputs."""
    collected: list[Tensor] = []
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(inner(block).register_forward_hook(lambda _, __, out: collected.append(out)).remove)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            collected.clear()
            return loss_of(model, batch) + sum(each.square().mean() for each in collected) + leaf

        yield loss


@contextmanager
def closure(blocks: list[nn.Module], leaf: Tensor) -> Iterator[Loss]:
    """Each block's code reads a tensor with a gradient, and leaves one, around its arguments and its output."""
    given: dict[str, Tensor] = {}
    left: list[Tensor] = []

    def through(own: Any) -> Callable[..., Tensor]:
        def forward(*args: Any) -> Tensor:
            value = own(*args) * given["gate"]
            left.append(value.sin())
            return value

        return forward

    modules = [inner(block) for block in blocks]
    for module in modules:
        module.forward = through(module.forward)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        given["gate"] = leaf.exp()
        left.clear()
        return loss_of(model, batch) + sum(each.mean() for each in left)

    yield loss
    for module in modules:
        del module.forward


SIDES = {
    "attentions": named("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"),
    "hidden states": named("hidden_states", "encoder_hidden_states", "decoder_hidden_states"),
    "router logits": named("router_logits"),
    "attribute": attribute,
    "hook": hook,
    "closure": closure,
}
EVERYWHERE = ["attribute", "hook", "closure"]
RETURNED = ["attentions", "hidden states"]
HAS = {
    "llama": [*RETURNED, *EVERYWHERE],
    "gpt2": RETURNED,
    "bert": RETURNED,
    "t5": [*RETURNED, *EVERYWHERE],
    "zamba2": [*RETURNED, *EVERYWHERE],
    "mixtral": [*RETURNED, "router logits"],
    "qwen3_moe": [*RETURNED, "router logits"],
    "vit_timm": EVERYWHERE,  # it returns logits alone
}


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, sides in HAS.items() for side in sides])
def test_what_leaves_a_block_by_another_way_has_its_gradient(name: str, side: str) -> None:
    """As in a plain pass, and under torch's checkpoint of the same blocks, in every budget."""
    model, batch, fitted = fitted_family(name)
    leaf = torch.tensor(0.1, requires_grad=True)
    leaves = [*model.parameters(), leaf]
    without = gradients(leaves, lambda: loss_of(model, batch).backward())
    with SIDES[side](list({id(each): each for each in fitted.order}.values()), leaf) as loss:

        def one_pass() -> None:
            loss(model, batch).backward()

        expected = gradients(leaves, one_pass)
        assert not equal(expected[:-1], without[:-1])
        with checkpointed(fitted.order):
            assert equal(gradients(leaves, one_pass), expected)
        for budget in BUDGETS:
            with within(fitted, budget):
                assert equal(gradients(leaves, one_pass), expected), budget


# ways to ask for gradients --------------------------------------------------------------------------------------------

Way = Callable[[nn.Module, Batch, list[Tensor]], list[Any]]


def into_some(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    loss_of(model, batch).backward(inputs=leaves[3::4])
    return held(leaves)


def from_grad(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    found = torch.autograd.grad(loss_of(model, batch), leaves)
    assert not any(leaf.grad is not None for leaf in leaves)
    return list(found)


def some_from_grad(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    """First those of a late block, then those of an early one."""
    value = loss_of(model, batch)
    late, early = leaves[-4:], leaves[3:6]
    return [*torch.autograd.grad(value, late, retain_graph=True), *torch.autograd.grad(value, early)]


def retained(times: int) -> Way:
    def way(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
        value = loss_of(model, batch)
        for time in range(times):
            value.backward(retain_graph=time + 1 < times)
        return held(leaves)

    return way


def twice_derived(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    first = torch.autograd.grad(loss_of(model, batch), leaves, create_graph=True)
    sum(each.square().sum() for each in first).backward()
    return [*first, *held(leaves)]


def two_at_once(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    first, second = loss_of(model, batch), loss_of(model, flipped(batch))
    (first * 0.5 + second).backward()
    return held(leaves)


def two_crossed(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    first, second = loss_of(model, batch), loss_of(model, flipped(batch))
    first.backward()
    second.backward()
    return held(leaves)


def accumulated(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
    for each in (batch, flipped(batch), batch):
        loss_of(model, each).backward()
    return held(leaves)


def flipped(batch: Batch) -> Batch:
    return {name: value.flip(-1) for name, value in batch.items()}


def under(context: Callable[[], Any], backward_too: bool = False) -> Way:
    def way(model: nn.Module, batch: Batch, leaves: list[Tensor]) -> list[Any]:
        with context():
            value = loss_of(model, batch)
            if backward_too:
                value.backward()
        if not backward_too:
            value.backward()
        return held(leaves)

    return way


def bf16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


WAYS: dict[str, Way] = {
    "backward": under(ExitStack),
    "inputs=": into_some,
    "autograd.grad": from_grad,
    "autograd.grad of parts": some_from_grad,
    "retain_graph, two passes": retained(2),
    "retain_graph, three passes": retained(3),
    "create_graph": twice_derived,
    "two forward passes, one backward": two_at_once,
    "two forward passes, each one's backward": two_crossed,
    "accumulation": accumulated,
    "bf16": under(bf16),
    "bf16, backward inside": under(bf16, backward_too=True),
    "anomaly mode": under(torch.autograd.detect_anomaly, backward_too=True),
    "saved on the CPU": under(torch.autograd.graph.save_on_cpu),
    "saved on the CPU, backward inside": under(torch.autograd.graph.save_on_cpu, backward_too=True),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Using backward")
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_plain_ones_however_they_are_asked_for(way: str) -> None:
    """Of a model with dropout and tied weights."""
    model, batch, fitted = fitted_family("gpt2")
    leaves = list(model.parameters())

    def one() -> list[Any]:
        found: list[Any] = []
        gradients(leaves, lambda: found.extend(WAYS[way](model, batch, leaves)))
        return found

    expected = one()
    for budget in ("least", "middle"):
        with within(fitted, budget):
            assert equal(one(), expected), budget


def test_a_backward_pass_may_come_when_the_step_is_over() -> None:
    model, batch, fitted = fitted_family("gpt2")
    leaves, values = list(model.parameters()), []
    expected = gradients(leaves, lambda: loss_of(model, batch).backward())
    with within(fitted, "least"):
        gradients(leaves, lambda: values.append(loss_of(model, batch)))
    loss_of(model, batch)
    values[0].backward()
    assert equal(held(leaves), expected)


def tied() -> nn.Module:
    """Blocks that share a weight."""
    model, _, _ = fitted_family("llama")
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    return model


def low_ranks() -> nn.Module:
    """Adapters on a frozen model, none of them 0."""
    model, _, _ = fitted_family("llama")
    torch.manual_seed(0)
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.1)
    return peft.get_peft_model(copy.deepcopy(model), adapters)


@pytest.mark.parametrize("make", [tied, low_ranks])
def test_hooks_run_once_for_a_weight_and_an_optimizer_may_step_in_them(make: Callable[[], nn.Module]) -> None:
    def trained(budget: str | None) -> tuple[list[Tensor], Counter[int]]:
        model, batch, counts = make(), fitted_family("llama")[1], Counter[int]()
        leaves = [each for each in model.parameters() if each.requires_grad]
        fitted = fit(model, batch, loss_of, "1GB", verify=False)

        def arrived(number: int, leaf: Tensor) -> None:
            counts[number] += 1
            with torch.no_grad():
                leaf.sub_(leaf.grad, alpha=0.1)
            leaf.grad = None

        for number, leaf in enumerate(leaves):
            leaf.register_post_accumulate_grad_hook(partial(arrived, number))
            leaf.register_hook(lambda _, number=number: counts.update([-1 - number]))
        seeded(3)
        with within(fitted, budget) if budget else nullcontext():
            for _ in range(2):
                loss_of(model, batch).backward()
        return [leaf.detach() for leaf in leaves], counts

    expected, counts = trained(None)
    assert set(counts.values()) == {2}
    for budget in ("least", "middle"):
        weights, ours = trained(budget)
        assert equal(weights, expected) and ours == counts


# outside of the model -------------------------------------------------------------------------------------------------


def test_what_is_outside_of_the_model_has_its_gradient_and_keeps_the_one_that_it_held() -> None:
    model, batch, _ = fitted_family("gpt2")
    torch.manual_seed(0)
    prompt, head = nn.Parameter(torch.randn(1, 4, 32)), nn.Linear(64, 3)
    outside, shapes = [prompt, *head.parameters()], []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        shapes.append(batch["input_ids"].shape)
        words = model.get_input_embeddings()(batch["input_ids"])
        embedded = torch.cat([prompt.expand(len(words), -1, -1), words], 1)
        return head(model(inputs_embeds=embedded).logits).square().mean()

    leaves, longer = [*model.parameters(), *outside], {"input_ids": batch["input_ids"].repeat(1, 2)}
    expected = [gradients(leaves, lambda b=each: loss(model, b).backward()) for each in (batch, longer)]
    kept = [torch.ones_like(each) for each in outside]
    for each, grad in zip(outside, kept, strict=True):
        each.grad = grad
    model.zero_grad()
    least = fit(model, batch, loss, "1GB", verify=False)
    (profile,) = least._profiles.values()
    fitted = fit(model, batch, loss, f"{int(1.05 * (least.plan.resident_bytes + profile.front[-1].peak_bytes))}B")
    assert fitted.plan.recomputed and all(each.grad is grad for each, grad in zip(outside, kept, strict=True))
    assert equal(kept, [torch.ones_like(each) for each in outside])
    shapes.clear()
    with fitted.step():
        for each, wanted in zip((batch, longer), expected, strict=True):
            assert equal(gradients(leaves, lambda b=each: loss(model, b).backward()), wanted)
    assert len(shapes) == 2 and len(fitted.plans) == 2


# no trace -------------------------------------------------------------------------------------------------------------


def attributes(model: nn.Module) -> list[dict[str, Any]]:
    """All that modules hold, by identity, and what their containers do."""

    def held_by(value: Any) -> Any:
        if isinstance(value, dict):
            return id(value), list(value), [held_by(each) for each in value.values()]
        if isinstance(value, list | tuple | set):
            return id(value), [held_by(each) for each in value]
        return value if isinstance(value, str | int | float | bool | type(None)) else id(value)

    return [{name: held_by(value) for name, value in vars(module).items()} for module in model.modules()]


def raises(*_: Any) -> Any:
    raise ZeroDivisionError


def stumbling(where: str) -> Callable[[nn.Module, Batch], Any]:
    """A pass that ends in an exception."""

    def one_pass(model: nn.Module, batch: Batch) -> None:
        layer = model.transformer.h[2]
        with ExitStack() as stack:
            if where == "block":
                stack.callback(setattr, layer.mlp, "act", layer.mlp.act)
                layer.mlp.act = None
            if where == "hook":
                stack.callback(layer.attn.register_forward_hook(raises).remove)
            if where == "hook of the block":
                stack.callback(layer.register_forward_hook(raises).remove)
            if where == "rerun":
                calls = itertools.count()
                stack.callback(layer.mlp.register_forward_pre_hook(lambda *_: raises() if next(calls) else None).remove)
            value = loss_of(model, batch)
            if where == "loss":
                raises()
            if where == "backward":
                stack.callback(model.transformer.h[1].mlp.c_fc.weight.register_hook(raises).remove)
            value.backward()

    return one_pass


PLACES = ["block", "hook", "hook of the block", "loss", "backward", "rerun"]


@cache
def least_bytes() -> int:
    fitted = fitted_family("gpt2")[2]
    (profile,) = fitted._profiles.values()
    return fitted.plan.resident_bytes + profile.front[-1].peak_bytes


def fitted_at_least(model: nn.Module, batch: Batch, share: float = 0.0, **options: Any) -> Fitted:
    return fit(model, batch, loss_of, f"{int(least_bytes() * (1 + share))}B", **options)


@pytest.mark.parametrize("place", PLACES)
def test_a_pass_that_ends_in_an_exception_leaves_the_model_as_it_was(place: str) -> None:
    model, batch, fitted = fitted_family("gpt2")
    leaves, before = list(model.parameters()), attributes(model)
    expected = gradients(leaves, lambda: loss_of(model, batch).backward())
    with within(fitted, "least"):
        installed = attributes(model)
        with pytest.raises((ZeroDivisionError, TypeError)):
            stumbling(place)(model, batch)
        if place != "hook of the block":
            assert attributes(model) == installed
        assert equal(gradients(leaves, lambda: loss_of(model, batch).backward()), expected)
        assert attributes(model) == installed
        with pytest.raises((ZeroDivisionError, TypeError)):
            stumbling(place)(model, batch)
    assert attributes(model) == before
    assert equal(gradients(leaves, lambda: loss_of(model, batch).backward()), expected)


def test_fitting_installing_and_removing_leave_the_model_as_it_was() -> None:
    model, batch, _ = fitted_family("gpt2")
    leaves, before = list(model.parameters()), attributes(model)
    expected = gradients(leaves, lambda: loss_of(model, batch).backward())
    grads, random_state = [leaf.grad for leaf in leaves], torch.get_rng_state()

    def runs() -> bool:
        return equal(gradients(leaves, lambda: loss_of(model, batch).backward()), expected)

    one, other = fitted_at_least(model, batch), fitted_at_least(model, batch, 0.6)
    assert other.plan.recomputed and one.plan.runs != other.plan.runs
    assert all(leaf.grad is grad for leaf, grad in zip(leaves, grads, strict=True))
    assert equal(grads, expected) and torch.equal(torch.get_rng_state(), random_state)
    assert attributes(model) == before
    for first, second in ((one, other), (other, one)):
        for removed in ((first, second), (second, first)):
            first.install()
            second.install()
            assert runs()
            removed[0].remove()
            assert runs()
            removed[1].remove()
            assert attributes(model) == before
        with first.step():
            assert runs()
            with second.step():
                assert runs()
            assert runs()
        assert attributes(model) == before
    for _ in range(2):  # a notebook's cell, run again
        again = fitted_at_least(model, batch)
        again.install()
        again.install()
        assert runs()
    again.remove()
    again.remove()
    assert attributes(model) != before and runs()


# what blocks do -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Does something besides."""

    def __init__(self, besides: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)
        self.count, self.seen, self.besides = 0, [], [besides]
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        x = self.besides[0](self, x)
        return x + self.two(self.norm(self.one(x)).relu())


class Net(nn.Module):
    def __init__(self, besides: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(besides) for _ in range(4))
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


def squared(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).square().mean()


def fitted_net(besides: Callable[[Any, Tensor], Tensor]) -> tuple[Net, Fitted]:
    """In its least budget."""
    plain = Net(lambda _, x: x)
    widest = fit(plain, X, squared, "1GB", verify=False)
    (profile,) = widest._profiles.values()
    model = Net(besides)
    return model, fit(model, X, squared, f"{int(1.2 * (widest.plan.resident_bytes + profile.front[-1].peak_bytes))}B")


def counts(block: Any, x: Tensor) -> Tensor:
    block.count += 1
    return x


def lists(block: Any, x: Tensor) -> Tensor:
    block.seen.append(x.mean().item())
    return x


def counts_in_a_buffer(block: Any, x: Tensor) -> Tensor:
    block.steps += 1
    return x


def counts_and_reads(block: Any, x: Tensor) -> Tensor:
    """What it computes depends on how often it ran."""
    block.count += 1
    return x * block.count


BESIDES = {
    "nothing": lambda _, x: x,
    "counts": counts,
    "lists": lists,
    "counts in a buffer": counts_in_a_buffer,
    "counts and reads": counts_and_reads,
}


@pytest.mark.parametrize("besides", BESIDES)
def test_what_blocks_keep_is_kept_once_a_step(besides: str) -> None:
    """Running statistics of batch normalisation too; with two forward passes before a backward one."""
    plain, (model, fitted) = Net(BESIDES[besides]), fitted_net(BESIDES[besides])
    model.load_state_dict(plain.state_dict())
    for mine, theirs in zip(model.blocks, plain.blocks, strict=True):
        assert (mine.count, mine.seen) == (theirs.count, theirs.seen), "fit left a trace"
    expected = []
    for each in (plain, model):

        def twice(m: Net = each) -> None:
            (squared(m, X) + squared(m, 2 * X)).backward()

        with fitted.step():
            passes = [gradients(list(each.parameters()), twice) for _ in range(2)]
        found = [*passes[0], *passes[1], *each.buffers()]
        expected = expected or found
        assert equal(found, expected)
    assert fitted.plan.recomputed and model.blocks[0].norm.num_batches_tracked == 4
    for mine, theirs in zip(model.blocks, plain.blocks, strict=True):
        assert (mine.count, mine.seen) == (theirs.count, theirs.seen)


def draws_of_numpy(_: Any, x: Tensor) -> Tensor:
    return x * float(np.random.rand())


def draws_of_python(_: Any, x: Tensor) -> Tensor:
    return x * random.random()


def writes_first(_: Any, x: Tensor) -> Tensor:
    return x.mul_(0.5)


@pytest.mark.parametrize("besides", [draws_of_numpy, draws_of_python, writes_first])
def test_blocks_that_do_other_things_again_are_refused_in_a_sentence(besides: Callable[[Any, Tensor], Tensor]) -> None:
    gradients([], lambda: squared(Net(besides), X).backward())  # a plain pass works
    states = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(ValueError, match=r"^Net cannot be fitted: ") as caught:
        fitted_net(besides)
    assert "\n" not in str(caught.value)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


# architectures --------------------------------------------------------------------------------------------------------


def frozen_below(name: str) -> tuple[nn.Module, Batch]:
    model, batch = FAMILIES[name]()
    blocks = model.model.layers if name == "llama" else model.transformer.h
    for part in (model.get_input_embeddings(), *blocks[: len(blocks) // 2]):
        part.requires_grad_(False)
    return model, batch


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "llava, whose last block of vision is not used": FAMILIES["llava"],
    "clip, two towers": FAMILIES["clip"],
    "albert, one block for all": FAMILIES["albert"],
    "llama with its cache": FAMILIES["llama"],
    "gpt2 with its cache": FAMILIES["gpt2"],
    "llama with its cache, frozen below": partial(frozen_below, "llama"),
    "gpt2 with its cache, frozen below": partial(frozen_below, "gpt2"),
    "gemma3n, whose last blocks read what earlier ones put into the cache": FAMILIES["gemma3n"],
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_plain_ones_and_the_peak_is_within_the_budget(name: str) -> None:
    model, batch = MODELS[name]()
    leaves = list(model.parameters())
    expected = gradients(leaves, lambda: loss_of(model, batch).backward())
    gradients(leaves, lambda: None)
    whole = fit(model, batch, loss_of, "1GB", verify=False)
    (profile,) = whole._profiles.values()
    for budget in ("least", "middle"):
        memory_bytes = int(1.05 * (whole.plan.resident_bytes + profile.front[BUDGETS[budget]].peak_bytes))
        fitted = fit(model, batch, loss_of, f"{memory_bytes}B")
        assert fitted.plan.recomputed
        with fitted.step():
            assert equal(gradients(leaves, lambda: loss_of(model, batch).backward()), expected)
            model.zero_grad()
            with TensorBytes().seed(model, None, batch) as meter:
                loss_of(model, batch).backward()
        assert meter.peak_bytes <= memory_bytes, budget
