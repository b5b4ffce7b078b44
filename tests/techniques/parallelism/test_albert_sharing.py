"""ALBERT's sharing against a model with a copy in each layer, and its formulas against transformers' own models."""

from __future__ import annotations

import pytest
import torch
import transformers

from suite.entries.spelling import build
from techniques.parallelism.albert_sharing.technique import (
    FactorisedEmbedding,
    FactorisedHead,
    albert_parameters,
)
from tests.runs import new_run

PUBLISHED = {"base": (768, 11.68e6), "large": (1024, 17.68e6), "xlarge": (2048, 58.72e6), "xxlarge": (4096, 222.6e6)}


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_formula_is_transformers_albert(size):
    width, published = PUBLISHED[size]
    config = transformers.AlbertConfig(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 64, embedding_size=128
    )
    with torch.device("meta"):
        model = transformers.AlbertModel(config)
    count = sum(each.numel() for each in model.parameters())
    assert count == albert_parameters(30000, 128, width) == pytest.approx(published, rel=1e-3)


def test_a_part_is_shared_alone():
    for what in ("attention", "ffn"):
        run = new_run("gpt", build(f"albert_sharing:share={what}"), size="pico", recipe="classic")
        first, second = run.anatomy.blocks[:2]
        for one, two in zip(first.linears, second.linears, strict=True):
            of_attention = one.path in {part.path for part in first.attention_linears}
            assert (one.module.weight is two.module.weight) == (of_attention == (what == "attention"))
        assert all(
            one.module.weight is not two.module.weight for one, two in zip(first.norms, second.norms, strict=True)
        )
        assert all(map(torch.isfinite, map(torch.tensor, run.train(2))))


@pytest.mark.parametrize("baseline", ["bert", "gpt"])
def test_a_factorised_embedding_and_its_tied_head(baseline):
    run = new_run(baseline, build("albert_sharing:embedding=4"), size="pico", recipe="classic")
    (table,) = [each for each in run.model.modules() if isinstance(each, FactorisedEmbedding)]
    (head,) = [each for each in run.model.modules() if isinstance(each, FactorisedHead)]
    rows, width = table.table.num_embeddings, table.projection.out_features
    plain = new_run(baseline, build("albert_sharing"), size="pico", recipe="classic")
    counts = [sum(each.numel() for each in one.model.parameters()) for one in (run, plain)]
    assert counts[1] - counts[0] == rows * width - 4 * (rows + width)
    whole = table.projection.weight.double() @ table.table.weight.double().T
    hidden = torch.randn(3, width)
    expected = hidden.double() @ whole + (0 if head.bias is None else head.bias.double())
    torch.testing.assert_close(head(hidden), expected.float(), rtol=1e-4, atol=1e-5)
    losses = run.train(3)
    assert all(map(torch.isfinite, map(torch.tensor, losses)))


def test_refusals_say_what_to_do():
    with pytest.raises(ValueError, match="set embedding to 0"):
        new_run("vit", build("albert_sharing:embedding=4"), size="pico")
    with pytest.raises(ValueError, match="has no more parameters than"):
        new_run("gpt", build("albert_sharing:embedding=64"), size="pico")
