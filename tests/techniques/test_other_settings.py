"""What an implementation must satisfy holds with other settings than the defaults: each property that a recorded step
shows, by its own bound. Properties that are about the defaults alone are named."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from suite.entries.catalogue import catalogue
from suite.judge.claims import decide, exactly
from suite.judge.known import Facts
from suite.judge.verdicts import FAILS
from suite.reading.recording import Recording
from tests.points import Point
from tests.runs import new_recording


class Case(NamedTuple):
    """A recorded run of ``steps``; properties in ``but`` are of the defaults. ``odd``: at the odd point, where a model
    drops out."""

    stack: str
    baseline: str
    size: str
    steps: int
    but: tuple[str, ...] = ()
    odd: bool = False


CASES = [
    Case("dota:execution=blocks", "vit", "pico", 4),
    Case("elsa:execution=blocks", "gpt", "pico", 4),
    Case("sanger:execution=blocks", "gpt", "pico", 4),
    Case("vitcod:execution=blocks", "vit", "pico", 4),
    Case("intrinsic_dim:structure_aware=false", "vit", "pico", 4),
    Case("vpt:deep=false", "vit", "pico", 4),
    Case("el2n:keep=0.25,offset=0.1,runs=1", "gpt", "pico", 16),
    Case("grand:keep=0.25,offset=0.1,runs=1,scout=0.25", "gpt", "pico", 8),
    Case("el2n:runs=1", "vit", "pico", 4, odd=True),
    Case("grand:runs=1", "vit", "pico", 4, odd=True),
    Case("is_gradnorm:momentum=0.5,presample=2", "vit", "pico", 6),
    Case("is_gradnorm:presample=5", "vit", "pico", 6),
    Case("autoprog:search=0.3,stages=2", "vit", "nano", 16),
    Case("autoprog:memory=0.5,search=0.2,stages=3", "vit", "nano", 16),
    Case("bert2bert:depth=2,method=fpi", "gpt", "nano", 8, ("aki_breaks_symmetry", "small_model_is_counted")),
    Case("bert2bert:carry_optimizer=true,share=0.5,width=4", "bert", "nano", 8, ("small_model_is_counted",)),
    Case("bert2bert", "vit", "nano", 8),
    Case("compound_grow:carry_optimizer=true,depth=4,ffn=4,length=4", "gpt", "nano", 8),
    Case("compound_grow:ffn=1,length=1", "bert", "nano", 8, ("fewer_block_flops",)),
    Case("pld:theta=0.7", "bert", "nano", 16),
    Case("pld:gamma=10", "gpt", "nano", 16),
    Case("progressive_patch:stages=3", "vit", "pico", 9, ("fewer_block_flops",)),
    Case("progressive_patch:patches=4/2", "vit", "pico", 9, ("fewer_block_flops",)),
    Case("progressive_resolution:stages=2", "gpt", "pico", 8),
    Case("progressive_resolution:stages=2", "bert", "pico", 8),
    Case("progressive_resolution:smallest=0.25,stages=3", "mae", "pico", 8),
    Case("progressive_resolution:smallest=0.25,stages=3", "vit", "pico", 8),
    Case("overparam_generalization:radius=0.02", "bert", "pico", 8),
    Case("overparam_generalization:radius=0", "bert", "pico", 8),
    Case("overparam_generalization:radius=0.02,width=1", "bert", "pico", 8, ("width",)),
    Case("train_large_compress:bits=4,prune=0.8,rounds=3", "gpt", "pico", 24),
    Case("train_large_compress:sparsity=0", "gpt", "pico", 24),
    Case("train_large_compress:bits=32", "gpt", "pico", 24),
    Case("layerscale:initial=0.01", "vit", "pico", 4, ("initial",)),
    Case("arora_depth:depth=3", "mae", "pico", 8),
    Case("progressive_stacking:carry_optimizer=true,stages=1", "gpt", "nano", 16),
    Case("progressive_stacking:fractions=0.25/0.5", "gpt", "nano", 16),
    Case("earlybert:search=0.5", "bert", "pico", 8),
    Case("earlybert:search=0.5", "mae", "pico", 8),
    Case("lth_imp:rate=0.3,rewind=0.25,rounds=2", "vit", "pico", 8, ("remaining", "sparse_flops")),
    Case("grasp:sparsity=0.6,temperature=50", "gpt", "pico", 4),
    Case("snip:sparsity=0.5", "vit", "pico", 4),
    Case("svite:death=0.3,interval=3,sparsity=0.7", "mae", "pico", 8, ("sparsity",)),
    Case("svite:death=0.3,structured=true", "vit", "nano", 8),
    Case("early_bird:interval=2", "vit", "pico", 20),
    Case("early_bird:share=0.5,threshold=0.2", "vit", "pico", 20),
    Case("early_bird:memory=3", "vit", "pico", 20),
    Case("rigl:distribution=uniform,interval=3", "vit", "pico", 8),
    Case("set:epsilon=5,interval=3,zeta=0.5", "vit", "pico", 8),
    Case("flip:drop=0.75,tune=0.2", "vit", "pico", 10),
    Case("mlm_mask_later:hidden=0.9,late=1,rate=0.4", "bert", "nano", 4),
    Case("mlm_mask_later:hidden=0.9,late=2,rate=0.4", "bert", "nano", 4),
    Case("mlm_mask_later:hidden=0.9,late=3,rate=0.4", "bert", "nano", 4),
    Case("mass:share=1", "bert", "pico", 4),
    Case("mass:share=0.07", "bert", "pico", 4),
    Case("mass:block=5", "bert", "pico", 4),
    Case("sam:adaptive=true,rho=2", "vit", "pico", 4),
    Case("rotor:budget=0.4", "gpt", "pico", 4),
    Case("ckpt_siskind_dnc:split=binomial", "mae", "pico", 4, ("fastest_bisection",)),
    Case("vdnn:budget=0.9,policy=all", "vit", "pico", 4),
    Case("capuchin:budget=0.3", "bert", "pico", 4),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join((*case.stack.split(":"), case.baseline, *["odd"][: case.odd]))
)
def test_its_properties_hold(case: Case) -> None:
    id = case.stack.partition(":")[0]
    if case.odd:
        recording = Recording(Point(case.baseline, case.steps, odd=True).run(case.stack))
    else:
        recording = new_recording(case.baseline, case.stack, size=case.size, recipe="classic", steps=case.steps)
    recording.train(recording.run.recipe.steps)
    shown = Facts(case.stack, probes=recording.probes())
    every = catalogue()[id].card.properties
    its_own = [each for each in every if not each.baselines or case.baseline in each.baselines]
    seen = {each.id: (each, exactly(each, id, [(shown, shown)])) for each in its_own}
    found = {name: decide(*pair)[0] for name, pair in seen.items() if pair[1].interval is not None}
    assert found
    failing = {name: seen[name][1].interval for name, outcome in found.items() if outcome == FAILS}
    assert {*failing} == {*case.but}, failing
