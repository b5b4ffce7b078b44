"""Prefix-tuning against peft by copied weights, and its attention against the formula in float64."""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PrefixTuningConfig, get_peft_model

from suite.loop.data import generator
from suite.loop.run import Run
from suite.model.attention import eager
from techniques.fine_tuning.prefix_tuning.technique import PrefixTuning, behind_prefix, fused, prefixes
from tests.runs import new_run
from tests.techniques.fine_tuning.longer_tables import with_longer_table

LENGTH, HIDDEN = 5, 24


def adapting(baseline: str, technique: PrefixTuning | None = None, steps: int = 2) -> Run:
    return new_run(baseline, technique or "baseline", size="pico", recipe="classic", task="adapt", steps=steps)


def test_outputs_and_gradients_equal_pefts_with_the_same_mlp():
    run, plain = adapting("gpt", PrefixTuning(LENGTH, HIDDEN)), adapting("gpt").model
    config = PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=LENGTH, prefix_projection=True, encoder_hidden_size=HIDDEN
    )
    plain.config.use_cache = True
    theirs = get_peft_model(with_longer_table(plain, LENGTH), config).eval()
    encoder = theirs.prompt_encoder["default"]
    own = list(prefixes(run.model).values())
    inner = own[0].inner
    pairs = [
        (encoder.embedding.weight, [inner.source]),
        (encoder.transform[0].weight, [inner.weight]),
        (encoder.transform[0].bias, [inner.bias]),
        (encoder.transform[2].weight, [each.weight for each in own]),
        (encoder.transform[2].bias, [each.bias for each in own]),
    ]
    for their, ours in pairs:
        their.data = torch.cat([each.detach() for each in ours])
    batch, _ = run.data.batch(0, 0, 4)
    outputs = [run.baseline.forward(model.eval(), batch) for model in (run.model, theirs)]
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=1e-5, atol=1e-6)
    for output in outputs:
        run.baseline.losses(output, batch).mean().backward()
    for their, ours in pairs:
        torch.testing.assert_close(torch.cat([each.grad for each in ours]), their.grad, rtol=1e-4, atol=1e-7)


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(["none", "causal", "bool", "added"]),
    st.sampled_from([eager, fused]),
)
def test_attention_behind_a_prefix_is_softmax_over_both(batch, length, tokens, masked, attention):
    random = generator(batch + 10 * length + 100 * tokens)
    heads, size, scale = 2, 3, 0.7
    query, key, value = (
        torch.randn(batch, heads, tokens, size, generator=random, dtype=torch.float64) for _ in range(3)
    )
    prefix = torch.randn(2, length, heads * size, generator=random, dtype=torch.float64)
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    mask = {"bool": seen, "added": torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(~seen, -1e30)}
    ours = behind_prefix(
        attention,
        prefix,
        query,
        key,
        value,
        mask=mask.get(masked),
        causal=masked == "causal",
        scale=scale,
        dropout_p=0.0,
    )
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        for example in range(batch):
            keys = torch.cat([prefix[0, :, columns], key[example, head]])
            values = torch.cat([prefix[1, :, columns], value[example, head]])
            scores = scale * query[example, head] @ keys.T
            if masked != "none":
                scores[:, length:] = scores[:, length:].masked_fill(~seen, -torch.inf)
            torch.testing.assert_close(ours[example, head], scores.softmax(-1) @ values)


def test_a_copy_of_the_model_attends_to_its_own_prefix():
    run = adapting("gpt", PrefixTuning(LENGTH, HIDDEN))
    batch, _ = run.data.batch(0, 0, 2)
    copied = copy.deepcopy(run.model.eval())
    with torch.no_grad():
        first = run.baseline.forward(run.model, batch).logits
        next(iter(prefixes(copied).values())).inner.source.add_(1.0)
        assert torch.equal(run.baseline.forward(run.model, batch).logits, first)
        assert not torch.allclose(run.baseline.forward(copied, batch).logits, first)
