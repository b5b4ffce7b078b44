"""Prompt tuning against peft, its first tokens, and padding, encoders and copies that read it."""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PromptTuningConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from suite.loop.data import generator
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.texts import text_positions
from techniques.fine_tuning.prompt_tuning.technique import PromptTuning, prepend, sampled_tokens
from tests.model.further_models import further_run, logits, make
from tests.runs import new_run
from tests.techniques.fine_tuning.longer_tables import with_longer_table

LENGTH = 5


def adapting(baseline: str, technique: PromptTuning | None = None, steps: int = 2) -> Run:
    return new_run(baseline, technique or "baseline", size="pico", recipe="classic", task="adapt", steps=steps)


def test_outputs_and_gradient_equal_pefts_where_positions_have_room():
    run, plain = adapting("gpt", PromptTuning(length=LENGTH)), adapting("gpt").model
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=LENGTH)
    theirs = get_peft_model(with_longer_table(plain, LENGTH), config).eval()
    weights = theirs.prompt_encoder["default"].embedding.weight
    weights.data = run.model.prompt.data.clone()
    batch, _ = run.data.batch(0, 0, 4)
    ours, expected = run.baseline.forward(run.model.eval(), batch), run.baseline.forward(theirs, batch)
    expected.logits = expected.logits[:, LENGTH:]
    torch.testing.assert_close(ours.logits, expected.logits, rtol=1e-5, atol=1e-6)
    for outputs in (ours, expected):
        run.baseline.losses(outputs, batch).mean().backward()
    torch.testing.assert_close(run.model.prompt.grad, weights.grad, rtol=1e-4, atol=1e-7)


def test_outputs_equal_pefts_where_positions_are_relative():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    ours = LlamaForCausalLM(config).eval()
    theirs = get_peft_model(copy.deepcopy(ours), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=LENGTH))
    prompt = nn.Parameter(theirs.prompt_encoder["default"].embedding.weight.detach().clone())
    tokens = torch.randint(64, (3, 7))
    prepend(anatomy(ours), prompt, lambda: ours(input_ids=tokens))
    with torch.no_grad():
        expected = theirs.eval()(input_ids=tokens).logits[:, LENGTH:]
        torch.testing.assert_close(ours(input_ids=tokens).logits, expected, rtol=1e-5, atol=1e-6)


def test_padding_stays_masked():
    run = adapting("bert", PromptTuning(length=LENGTH))
    tokens = run.data.batch(0, 0, 2)[0]["input_ids"]
    mask = (torch.arange(tokens.shape[1]) < 10).long().expand_as(tokens)
    with torch.no_grad():
        padded = run.model.eval()(input_ids=tokens, attention_mask=mask, token_type_ids=torch.zeros_like(tokens))
        torch.testing.assert_close(padded.logits[:, :10], run.model(input_ids=tokens[:, :10]).logits)


def test_an_encoders_prompt_leaves_the_decoders_row_as_it_is():
    run = further_run("t5", PromptTuning(length=LENGTH))
    plain = logits(make("t5").eval(), "t5")
    with_prompt = logits(run.model.eval(), "t5")
    assert with_prompt.shape == plain.shape
    assert not torch.allclose(with_prompt, plain)


def test_positions_of_a_text_are_those_that_the_model_looks_up():
    run = adapting("bert")
    positions = text_positions(anatomy(run.model), lambda: run.trial(run.model))
    assert positions.tolist() == [list(range(16))]
    relative = make("t5")
    assert text_positions(anatomy(relative), lambda: logits(relative, "t5")) is None


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_tokens_are_the_most_common_and_different_where_there_are_enough(length, vocabulary, common, seed):
    tokens = sampled_tokens(vocabulary, length, generator(seed), common)
    assert tokens.shape == (length,)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < min(common, vocabulary)
    assert length > min(common, vocabulary) or len(tokens.unique()) == length


def test_a_prompt_may_start_as_uniform_numbers():
    uniform = adapting("gpt", PromptTuning(length=200, initialization="uniform")).model.prompt
    assert 0.49 < uniform.abs().max() <= 0.5
    assert abs(uniform.mean().item()) < 0.02
