"""BitFit against full fine-tuning of which all but the biases is thrown away, and the counts of its paper."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from suite.loop.run import Run
from suite.measure.at_scale.weightless import weightless
from suite.model.anatomy import anatomy
from techniques.fine_tuning.bitfit.technique import BitFit, biases, train_biases
from techniques.fine_tuning.shared.frozen import new_heads
from tests.model.further_models import further_run
from tests.runs import new_run

BASELINES = ("bert", "gpt", "mae", "vit")


def adapting(baseline: str, technique: str = "bitfit", steps: int = 4) -> Run:
    return new_run(baseline, technique, size="pico", recipe="classic", task="adapt", steps=steps)


def bias_names(model: nn.Module) -> set[str]:
    """Of the modules whose ``bias`` is a parameter, each parameter once."""
    bases = {id(module.bias) for module in model.modules() if isinstance(getattr(module, "bias", None), nn.Parameter)}
    return {name for name, each in model.named_parameters() if id(each) in bases}


@pytest.mark.parametrize("baseline", BASELINES)
def test_trains_as_full_fine_tuning_does_whose_weights_are_put_back(baseline: str) -> None:
    run, plain = adapting(baseline), adapting(baseline, "baseline")
    heads = {f"{part.path}.{name}" for part in anatomy(plain.model).head for name in ("weight", "bias")}
    trained = {
        name: each
        for name, each in plain.model.named_parameters()
        if name in bias_names(plain.model) or (name in heads and baseline in ("mae", "vit"))
    }
    recipe = plain.recipe
    groups = [
        {"params": [each for each in trained.values() if each.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [each for each in trained.values() if each.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 30 * recipe.learning_rate_at(step)
        batch, _ = plain.data.batch(0, 0, 4)
        run.train_step(batch, torch.arange(4))
        plain.model.zero_grad()
        plain.baseline.losses(plain.baseline.forward(plain.model, batch), batch).mean().backward()
        nn.utils.clip_grads_with_norm_(
            trained.values(), recipe.gradient_clip, nn.utils.get_total_norm([each.grad for each in trained.values()])
        )
        optimizer.step()
    for (name, ours), theirs in zip(run.model.named_parameters(), plain.model.parameters(), strict=True):
        # a key's bias adds the same to all scores of a query: its gradients are roundings, of which Adam takes the sign
        is_key = torch.zeros_like(ours, dtype=torch.bool)
        if name.endswith("qkv.bias"):
            is_key.chunk(3)[1].fill_(True)
        torch.testing.assert_close(ours[~is_key], theirs[~is_key], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("model", "config", "expected"),
    [
        (BertModel, BertConfig(), 11 * 768 * 12 + 2 * 768),
        (
            BertModel,
            BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
            272_384,
        ),
        (GPT2Model, GPT2Config(), 11 * 768 * 12 + 768),
    ],
    ids=["bert-base", "bert-large", "gpt2"],
)
def test_numbers_at_the_papers_sizes(model: type[nn.Module], config: object, expected: int) -> None:
    """11 d L, and of BERT d each for the embeddings' norm and the pooler: 0.094 % and 0.081 %."""
    with weightless():
        network = train_biases(model(config))
        assert sum(each.numel() for each in biases(network).values()) == expected
        assert {id(each) for each in biases(network).values()} == {
            id(each) for each in network.parameters() if each.requires_grad
        } - {id(each) for part in new_heads(anatomy(network)) for each in [part.module.weight]}
        if model is BertModel:
            share = expected / sum(each.numel() for each in network.parameters())
            assert round(100 * share, 3) == (0.094 if config.hidden_size == 768 else 0.081)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["gpt_neox", "falcon", "beit", "swin", "albert"])
def test_trains_models_of_users(name: str) -> None:
    """With biases of rows (BEiT's q_bias), of norms alone (Falcon), of one block that stands for all (ALBERT)."""
    run = further_run(name, BitFit())
    before = {name: each.detach().clone() for name, each in run.model.named_parameters()}
    run.train(2)
    moved = {name for name, each in run.model.named_parameters() if not torch.equal(each, before[name])}
    assert moved and moved <= biases(run.model).keys() | {
        f"{part.path}.weight" for part in new_heads(anatomy(run.model))
    }


@pytest.mark.parametrize("name", ["phi3", "mixtral", "t5"])
def test_a_model_without_biases_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="have no bias terms"):
        further_run(name, BitFit())
