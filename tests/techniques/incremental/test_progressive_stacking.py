"""Progressive stacking: its depths, carried state, and models of two stacks."""

from itertools import pairwise
from typing import Any

import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.record.job import Job, Setting
from techniques.incremental.progressive_stacking.technique import ProgressiveStacking, depths
from tests.runs import new_run


def running(stacking: ProgressiveStacking | None, baseline: str = "gpt", steps: int = 20) -> Run:
    stack = Stack({} if stacking is None else {"stacking": stacking})
    return new_run(baseline, stack, size="nano", recipe="classic", steps=steps)


@given(st.integers(1, 100), st.integers(0, 5))
def test_any_depth_is_reached_and_no_stage_more_than_doubles(full, stages):
    plan = depths(full, stages)
    assert plan[-1] == full
    assert all(small <= large <= 2 * small for small, large in pairwise(plan))


def test_optimizer_state_can_be_doubled_with_the_blocks():
    run = running(ProgressiveStacking(stages=1, fractions=(0.2,), carry_optimizer=True))
    run.train(4)
    blocks = [list(block.module.parameters()) for block in run.anatomy.blocks]
    assert len(blocks) == 4
    for old, new in zip(blocks[0] + blocks[1], blocks[2] + blocks[3], strict=True):
        states = run.optimizer.state[old], run.optimizer.state[new]
        assert states[0]["exp_avg"] is not states[1]["exp_avg"]
        assert torch.equal(states[0]["exp_avg"], states[1]["exp_avg"])
    assert run.optimizer.state[run.anatomy.embeddings[0].module.weight]["step"] == 4


def test_the_jump_is_that_of_the_first_loss_after_the_last_doubling():
    stacking = ProgressiveStacking(fractions=(0.2, 0.4))
    run = running(stacking, steps=10)
    losses = run.train(6)
    assert run.technique.probes(run)["stacking.loss_jump"] == losses[4] - losses[3]


def test_the_encoder_grows_though_the_decoder_is_larger_at_first():
    """The ratio of sizes is MAE-B's: a quarter of twelve blocks of 768 beside eight of 512."""
    vit = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 96}
    decoder = {"num_hidden_layers": 8, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 64}
    sizes = {**vit, "num_hidden_layers": 12, **{f"decoder_{name}": size for name, size in decoder.items()}}
    config = transformers.ViTMAEConfig(**sizes, image_size=8, patch_size=2, num_channels=1)
    kind: Any = type(baselines()["mae"])

    class Own(kind):
        def model(self, *_: Any) -> Any:
            return transformers.ViTMAEForPreTraining(config)

    job = Job(setting=Setting(baseline="mae", size="pico", recipe="classic", steps=10), stack="progressive_stacking")
    run = run_of(job, baseline=Own())
    run.train(10)
    assert [stack.depth for stack in run.anatomy.stacks] == [12, 8]
    assert run.anatomy.main.path.startswith("vit")
