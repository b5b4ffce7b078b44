"""Stacks in strangers' loops: steps to the bit those of the suite's own run, every entry applied or refused, states
that resume, and refusals that leave no trace."""

from __future__ import annotations

import copy
import math
import warnings
from io import BytesIO
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import leantrain
from leantrain.applying import Applied, apply, refusals
from leantrain.user_model import form
from suite.entries.catalogue import UnknownId, catalogue
from suite.entries.spelling import build as built_stack
from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.model.anatomy import anatomy
from suite.record.job import StackError
from tests.model.transformer_models import build
from tests.numbers import attached
from tests.runs import new_run

APPLIED = [name for name, entry in catalogue().items() if not entry.card.own_loop]
OF_LATER_BATCHES = {"autoprog": "autoprog", "vitcod": "vitcod:batches=1"}  # how they are spelled where they look at one
STACK = "lora+adam8bit_blockwise+ckpt_chen_sqrt"


def batch_of(seed: int = 0, examples: int = 4) -> dict[str, Tensor]:
    tokens = torch.randint(3, 64, (examples, 16), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens}


def stepped(applied: Applied, batch: Any) -> None:
    """A step as the documentation has it."""
    model, optimizer, context = applied
    if context.run.overriding("update"):
        context.update(batch)
        return
    with context.step(batch):
        outputs = model(**batch)
        loss = context.loss(outputs.loss, outputs) if context.run.adding_terms() else outputs.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# against the suite's own run ------------------------------------------------------------------------------------------


def in_my_loop(run: Run, stack: str) -> Applied:
    """The stack, applied to a model that begins as ``run``'s does."""
    plain = new_run(run.baseline.id, size="pico", recipe="classic", steps=run.job.setting.steps)
    recipe = plain.baseline.recipe_of(plain.job.setting).as_dict()
    own = ("schedule", "warmup_fraction", "final_learning_rate_ratio", "weight_decay", "beta1", "beta2", "eps")
    first, _ = plain.next_batch()
    return apply(
        plain.plain_model(),
        stack,
        batch=first,
        examples=len(plain.data.train),
        steps=recipe["steps"],
        loss=lambda model, batch: run.baseline.losses(run.baseline.forward(model, batch), batch),
        learning_rate=recipe["learning_rate"],
        gradient_clip=recipe["gradient_clip"],
        **{name: recipe[name] for name in own},
    )


def my_step(run: Run, applied: Applied, batch: dict[str, Tensor], indices: Tensor) -> None:
    model, optimizer, context = applied
    if context.run.overriding("update"):
        context.update(batch, indices)
        return
    with context.step(batch, indices):
        outputs = run.baseline.forward(model, batch)
        loss = run.baseline.losses(outputs, batch).mean()
        if context.run.adding_terms():
            loss = context.loss(loss, outputs, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def differing(ours: nn.Module, theirs: nn.Module) -> list[str]:
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    return [name for name, each in mine.items() if not torch.equal(each, other[name])]


@pytest.mark.parametrize("name", APPLIED)
def test_a_step_in_my_loop_is_the_suites_to_the_bit(name: str) -> None:
    stack = OF_LATER_BATCHES.get(name, name)
    run = new_run(catalogue()[name].card.baselines[0], stack, size="pico", recipe="classic", steps=4)
    applied = in_my_loop(run, stack)
    batches = []
    start = mixed_seed(0, 1, 0)
    torch.manual_seed(start)
    for _ in range(2):
        batches.append(run.next_batch())
        run.train_step(*batches[-1])
    torch.manual_seed(start)
    for batch, indices in batches:
        my_step(run, applied, batch, indices)
    assert applied.context.finished == 2
    if name == "autoprog":  # judges its candidates by a batch, in the suite by the one to come
        assert applied.context.run.technique.techniques[name].current == run.technique.techniques[name].current
        return
    assert differing(applied.context.run.model, run.model) == []


def test_every_entry_is_applied_or_says_why_not_in_one_sentence() -> None:
    why_not = refusals()
    assert {*APPLIED, *why_not} == {*catalogue()} and len(why_not) + len(APPLIED) == len(catalogue())
    model = build("gpt2")
    for name, reason in why_not.items():
        assert not reason.endswith(".") and ". " not in reason and reason[0].islower(), name
        with pytest.raises(StackError, match=f"^{name} does not apply to a loop of your own: "):
            apply(model, f"lion+{name}")


# states -----------------------------------------------------------------------------------------------------------


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize(
    "stack",
    [
        STACK,
        "progressive_stacking:fractions=0.2/0.5",
        "rigl:interval=2",
        "sam+lion",
        "saf_mesa:start=0",
        "amp_fp16",
        "lawa",
        "train_large_compress:prune=0.6,rounds=3",
        "lamb",
    ],
)
def test_a_resumed_loop_goes_on_to_the_bit(stack: str) -> None:
    def begun() -> Applied:
        return apply(build("gpt2"), stack, learning_rate=1e-3, steps=10, batch=batch_of(), warmup_fraction=0.3)

    whole, state = begun(), {}
    for step in range(10):
        if step == 5:
            state = through_a_file(whole.context.state_dict())
        stepped(whole, batch_of(step))
    resumed = begun()
    resumed.context.load_state_dict(state)
    for step in range(5, 10):
        stepped(resumed, batch_of(step))
    assert resumed.context.finished == 10
    assert differing(resumed.context.run.model, whole.context.run.model) == []


def test_a_state_of_another_stack_is_refused() -> None:
    state = apply(build("gpt2"), "lion").context.state_dict()
    with pytest.raises(ValueError, match="the state is of lion, and this stack is lars"):
        apply(build("gpt2"), "lars").context.load_state_dict(state)


# what stays the loop's ------------------------------------------------------------------------------------------------


def test_accumulated_batches_are_one_step() -> None:
    """Of the mean of two halves; the techniques' own clock goes on once."""
    whole, halves = (apply(build("vit"), "sgd_momentum+ckpt_chen_sqrt", learning_rate=1e-5) for _ in range(2))
    pictures = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for model in (whole.model, halves.model):
        model.eval()  # no dropout, which the halves would draw otherwise
    with whole.context.step():
        whole.model(pictures).square().mean().backward()
        whole.optimizer.step()
    for number, half in enumerate(pictures.chunk(2)):
        assert halves.context.finished == 0
        with halves.context.step():
            (halves.model(half).square().mean() / 2).backward()
            if number == 1:
                halves.optimizer.step()
    assert halves.context.finished == whole.context.finished == 1
    for ours, theirs in zip(halves.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_the_outputs_of_all_accumulated_batches_are_kept() -> None:
    applied = apply(build("vit"), "saf", steps=10, examples=8, batch=(torch.zeros(2, 3, 32, 32),))
    for indices in torch.arange(8).chunk(2):
        with applied.context.step(indices=indices):
            outputs = applied.model(torch.zeros(4, 3, 32, 32))
            (applied.context.loss(outputs.square().mean(), outputs) / 2).backward()
            if indices[-1] == 7:
                applied.optimizer.step()
    saf: Any = applied.context.run.technique
    assert saf.techniques["saf"].past.visits.tolist() == [1] * 8


def test_a_scheduler_of_the_loops_decides_the_rate_also_after_the_model_has_grown() -> None:
    applied = apply(build("gpt2"), "progressive_stacking:fractions=0.2/0.5", learning_rate=1e-3, steps=10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(applied.optimizer, lambda step: 1 / (1 + step))
    for step in range(6):
        assert {group["lr"] for group in applied.optimizer.param_groups} == {1e-3 / (1 + step)}
        stepped(applied, batch_of(step))
        scheduler.step()
    assert anatomy(applied.model).depth == 4


def test_what_a_loop_forgets_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"with context\.step"):
        apply(build("gpt2"), "lion").optimizer.step()
    adding = apply(build("gpt2"), "saf_mesa", steps=10)
    with pytest.raises(RuntimeError, match=r"saf_mesa adds to the loss: loss = context\.loss"):
        stepped_without_its_term(adding)
    sam = apply(build("gpt2"), "sam").context
    with pytest.raises(RuntimeError, match=r"sam makes a step's passes itself: context\.update"), sam.step():
        pass
    goes_by_steps = apply(build("gpt2"), "saf_mesa")
    with pytest.raises(ValueError, match="name it, apply"):
        stepped(goes_by_steps, batch_of())
    numbered = apply(build("vit"), "saf", steps=10, examples=50)
    pictures = torch.zeros(2, 3, 32, 32)
    with pytest.raises(ValueError, match="saf knows examples again: name their numbers"), numbered.context.step():
        outputs = numbered.model(pictures)
        numbered.context.loss(outputs.mean(), outputs)
    with pytest.raises(ValueError, match=r"let loss.* give one for each"):
        scalar = apply(build("gpt2"), "esam", loss=lambda model, batch: model(**batch).loss, batch=batch_of())
        scalar.context.update(batch_of())


def stepped_without_its_term(applied: Applied) -> None:
    with applied.context.step(batch_of()):
        applied.model(**batch_of()).loss.backward()
        applied.optimizer.step()


# any model ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "deberta", "vit", "mae", "t5"])
def test_a_model_needs_no_batch_to_be_changed(name: str) -> None:
    model = build(name)
    before = copy.deepcopy(model.state_dict())
    applied = apply(model, "lora:dropout=0.1+lion+ckpt_chen_sqrt")
    trained = [each for each, parameter in applied.model.named_parameters() if parameter.requires_grad]
    assert any(".a." in each for each in trained)
    frozen = {each.replace(".linear.", "."): value for each, value in applied.model.state_dict().items()}
    assert all(torch.equal(frozen[each], value) for each, value in before.items() if each in frozen)
    assert len(frozen.keys() & before.keys()) > len(before) * 0.9


def test_pictures_and_classes_are_a_batch_of_two() -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(4, 3, 32, 32, generator=draw), torch.arange(4)) for _ in range(2)]
    for stack in ("esam", "sam", "lora"):
        applied = apply(build("vit"), stack, batch=pairs[0], learning_rate=1e-3)
        loss = applied.context.update(pairs[1])
        assert math.isfinite(loss)


def test_autocast_is_around_the_models_passes_and_nothing_else() -> None:
    plain, applied = build("llama").eval(), apply(build("llama"), "amp_bf16")
    applied.model.load_state_dict(plain.state_dict())
    applied.model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(**batch_of()).logits
    logits = applied.model(**batch_of()).logits
    assert torch.equal(logits, expected) and not torch.is_autocast_enabled("cpu")


# bad input ------------------------------------------------------------------------------------------------------------


def appearance(model: nn.Module) -> tuple[Any, ...]:
    parameters = [(name, each.requires_grad, each.grad is None) for name, each in model.named_parameters()]
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]
    config = model.config.to_dict() if hasattr(model, "config") else {}
    attributes = [sorted(vars(each)) for each in model.modules()]
    return repr(model), parameters, hooks, config, [each.training for each in model.modules()], attributes


@pytest.mark.parametrize(
    ("stack", "options", "message"),
    [
        ("sam+esam", {}, "sam and esam cannot be stacked: each replaces the update"),
        ("lion+lamb", {}, "each replaces the optimizer"),
        ("lyon", {}, "did you mean lion"),
        ("", {}, "the stack names no technique"),
        (" ", {}, "names no technique"),
        ("baseline", {}, "the stack names no technique"),
        ("+", {}, "one of them is missing"),
        ("lion+", {}, "one of them is missing"),
        ("lora:rank", {}, "write hyper-parameters as lora:name=value"),
        ("lora:rank=4,rank=5", {}, "rank is set twice"),
        ("lora+lora", {}, "stands twice in the stack"),
        ("lora:targets=", {}, "write hyper-parameters as"),
        ("lora:rank=-1", {}, "rank is 1 or more"),
        ("lora:rank=0", {}, "lora changes nothing at rank=0: leave it out"),
        ("lion+sam:rho=0", {}, "sam changes nothing at rho=0"),
        ("lora:alpha=nan", {}, "must be positive"),
        ("lora:dropout=2", {}, r"must lie in \[0, 1\)"),
        ("sam:rho=nan", {}, "must be 0 or more, not nan"),
        ("lion:factor=0", {}, "must be positive"),
        ("amp_bf16+amp_fp16", {}, "each says in which precision the passes compute"),
        ("amp_fp16+amp_bf16", {}, "each says in which precision the passes compute"),
        ("ckpt_chen_sqrt+torch_sac", {}, "each plans how the same blocks run"),
        ("torch_sac+ckpt_chen_sqrt", {}, "each plans how the same blocks run"),
        ("torch_autoac+rotor", {}, "each plans how the same blocks run"),
        ("dtr+torch_sac", {}, "each plans how the same blocks run"),
        ("lora+alpaca_lora", {}, "each puts low-rank updates on the layers"),
        ("fp8_hybrid+int8_mixed", {}, "each replaces the products of the same layers"),
        ("dota+sanger", {}, "each chooses the pairs that attend"),
        ("actnn+gact", {}, "each packs what the passes save"),
        ("bitfit+lora", {}, "bitfit has nothing to act on in this stack"),
        ("rigl+set", {"steps": 10}, "each masks the same weights"),
        ("lora:rank=1000", {}, "rank 1000 is more"),
        ("lora:rank=x", {}, "expected a whole number"),
        ("lora+int_only", {}, "int_only replaces nn.Linear"),
        ("progressive_patch", {"steps": 10}, "needs pictures"),
        ("rezero+tfixup+lora:targets=nothing", {"steps": 10}, "no layer is called nothing"),
        ("snip", {}, "looks at a batch: name one"),
        ("lion", {"schedule": "cosine"}, "goes by the run's length: name it"),
        ("lion", {"momentum": 1}, "a recipe has no momentum"),
        ("lion", {"world_size": 2}, "is the loop's own matter"),
        ("lion", {"learning_rate": -1.0}, "learning_rate must be positive"),
        ("rotor:budget=0.5", {"batch": [1, 2]}, "a mapping or a sequence of tensors"),
    ],
)
def test_a_refusal_is_one_sentence_and_leaves_the_model_as_it_was(stack: str, options: Any, message: str) -> None:
    model = build("gpt2").eval()
    shown, values = appearance(model), copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    with pytest.raises((ValueError, UnknownId), match=message) as caught:
        apply(model, stack, **options)
    assert "\n" not in str(caught.value)
    assert appearance(model) == shown
    assert all(torch.equal(each, values[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_prompt_stands_before_a_text_whose_labels_the_model_itself_reads() -> None:
    """Its own positions have none: the loss is that of the text's logits, with the first word told by the prompt."""
    for name in ("gpt2", "bert"):
        applied, batch = apply(build(name), "prompt_tuning:length=4", steps=4), batch_of()
        applied.model.eval()
        with torch.no_grad():
            outputs = applied.model(**batch)
        assert outputs.logits.shape[1] == 16
        if name == "bert":
            expected = F.cross_entropy(outputs.logits.flatten(0, 1), batch["labels"].flatten())
            torch.testing.assert_close(outputs.loss, expected)
        stepped(applied, batch)


def test_batches_of_both_forms_are_each_their_own() -> None:
    """The techniques know pairs; what is evaluated between two steps is named."""
    pair = (torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(4))
    user = apply(build("vit"), "sam", batch=pair).context.run.user
    assert user.named({"x": pair[0]}).keys() == {"x"}
    assert user.forward(build("vit"), user.named(pair)).logits.shape == (4, 10)
    assert form(user.named(pair))[1] is pair[1] and form({"x": pair[0]}).keys() == {"x"}


def test_a_loss_may_read_the_models_parameters() -> None:
    def penalised(model: nn.Module, batch: Any) -> Tensor:
        return model(**batch).loss + 1e-3 * sum(each.square().sum() for each in model.parameters())

    applied = apply(build("gpt2"), "rotor:budget=0.5+sgd_momentum", batch=batch_of(), loss=penalised)
    before = penalised(applied.model, batch_of()).item()
    with applied.context.step(batch_of()):
        penalised(applied.model, batch_of()).backward()
        applied.optimizer.step()
    assert penalised(applied.model, batch_of()).item() < before


def test_what_is_no_transformer_is_refused() -> None:
    with pytest.raises(ValueError, match="no Transformer blocks"):
        apply(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "lion")
    with pytest.raises(ValueError, match="on meta"):
        apply(nn.Linear(2, 2, device="meta"), "lion")


def test_a_technique_that_does_nothing_is_no_step() -> None:
    """The adapted layers never run: the first step says so."""
    _, optimizer, context = apply(build("gpt2"), "lora:train_head=false")
    factor = optimizer.param_groups[0]["params"][0]
    with pytest.raises(NotAttached, match="lora did nothing at"), context.step(batch_of()):
        factor.sum().backward()
        optimizer.step()


def test_the_stack_in_the_documentation_is_built() -> None:
    assert list(built_stack(STACK).techniques) == ["lora", "adam8bit_blockwise", "ckpt_chen_sqrt"]
    assert leantrain.apply is apply


# entries that swap attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", attached.entries())
@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "t5gemma", "xcit_timm", "qwen2_vl"])
def test_an_attention_that_does_not_fit_is_refused_as_it_is_applied(family: str, entry: str) -> None:
    """The first pass of a model that was applied is no place to hear of it; a refused model is as it was."""
    assert attached.outcome(family, entry).word in ("works", "refused")


def test_layers_that_are_dropped_at_random_have_their_attention_measured() -> None:
    config = hf.BartConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_layerdrop=0.9,
        decoder_layerdrop=0.9,
    )
    for entry in attached.entries():
        model = hf.BartForConditionalGeneration(config).train()
        apply(model, entry, batch=batch_of(), steps=2)
        assert model.training and all(module.training for module in model.modules())


def test_what_trains_beside_a_model_does_not_shrink_its_gradient() -> None:
    weights = {}
    for weight in (1, 1000):
        torch.manual_seed(0)
        applied = apply(build("gpt2"), f"dota:weight={weight}", batch=batch_of(), gradient_clip=1.0)
        torch.manual_seed(0)
        stepped(applied, batch_of())
        weights[weight] = applied.model.get_input_embeddings().weight.detach().clone()
    assert torch.equal(weights[1], weights[1000])


def test_a_loop_clips_what_trains_beside_a_model_apart_and_is_told_so() -> None:
    weights = {}
    for weight in (1, 1000):
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match=r"^dota:weight=\d+ trains parameters beside the model.*clip_gradients"):
            model, optimizer, context = apply(build("gpt2"), f"dota:weight={weight}", batch=batch_of())
        torch.manual_seed(0)
        with context.step(batch_of()):
            outputs = model(**batch_of())
            context.loss(outputs.loss, outputs).backward()
            norm = context.clip_gradients(0.5)
            own = [p.grad for each in optimizer.param_groups for p in each["params"] if not each.get("auxiliary")]
            assert norm > 0.5 and nn.utils.get_total_norm(own).item() == pytest.approx(0.5, rel=1e-5)
            optimizer.step()
        weights[weight] = model.get_input_embeddings().weight.detach().clone()
    assert torch.equal(weights[1], weights[1000])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(build("gpt2"), "dota", batch=batch_of(), gradient_clip=1.0)
        apply(build("gpt2"), "lora")
