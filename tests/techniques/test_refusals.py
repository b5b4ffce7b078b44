"""What makes no sense is refused in a sentence that says what fits: hyper-parameters as the stack is read, what a
baseline or a user's model does not allow as the run begins."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from suite.entries.catalogue import reference_of
from suite.entries.spelling import build
from suite.record.job import RecipeName, Size, StackError
from tests.model.further_models import further_run
from tests.runs import new_run

REFUSED = {
    "a3": {
        "share=-0.5": "0 or more, not -0.5",
        "threshold=0": "at most 1, not 0",
        "threshold=2": "not 2",
    },
    "acclip": {
        "alpha=0.5": "alpha|eps|factor|betas",
        "alpha=2.5": "alpha|eps|factor|betas",
        "beta1=1": "alpha|eps|factor|betas",
        "eps=0": "alpha|eps|factor|betas",
        "factor=0": "alpha|eps|factor|betas",
    },
    "acgc": {
        "history=0": "1 or more",
        "interval=0": "1 or more",
        "bits=1": "2 to 16 a value",
        "bits=17": "2 to 16 a value",
        "error=0": "allowed share",
        "error=inf": "allowed share",
        "error=nan": "allowed share",
    },
    "actnn": {
        "bits=3,level=L2": "1, 2, 4 or 8 bits, not 3",
        "bits=0.5": "from 1 to 8, not 0.5",
        "bits=9": "from 1 to 8, not 9",
    },
    "adam4bit_rank1": {
        "smallest=0": "is 1 or more",
    },
    "adapter_houlsby": {
        "bottleneck=0": "must be",
        "learning_rate_ratio=0": "must be",
    },
    "albert_sharing": {
        "share=norms": "choose one of all, attention, ffn",
        "embedding=-1": "or 0 for none",
    },
    "alpaca_lora": {
        "dropout=1": "dropout must lie in",
        "learning_rate=0": "must be positive",
        "micro_batch_size=3": "passes of 3 do not make a batch of 128: choose a divisor",
        "rank=0": "rank is 1 or more",
    },
    "amp_fp16": {
        "interval=0": "1 good step or more",
        "backoff=1": "backoff between 0 and 1",
        "variant=o3": "choose one of autocast, o2",
        "growth=0.5": "growth of 1 or more",
        "initial_scale=0": "positive initial_scale",
    },
    "arora_depth": {
        "depth=-1": "number of factors",
        "depth=0": "number of factors",
    },
    "autoprog": {
        "stages=0": "1 or more",
        "search=0.4": "none to train in",
        "search=0": "search is a share",
    },
    "autoswap": {
        "score=priority": "doa, aoa, wdoa, swdoa",
    },
    "bert2bert": {
        "share=1": r"\[0, 1\)",
        "width=1": "progressive_stacking",
    },
    "bitfit": {
        "learning_rate_ratio=0": "must be positive",
    },
    "checkmate_milp": {
        "limit_s=0": "above 0 seconds",
        "method=greedy": "choose one of milp, rounding",
        "budget=1.5": "share of the way",
    },
    "chimera": {
        "units=0": "1 unit of micro-batches or more",
        "ranks=3": "an even number of ranks, not 3",
    },
    "chinchilla": {
        "width=0": "multiples",
    },
    "ckpt_chen_sqrt": {
        "count=-1": "0 for no recomputation",
    },
    "ckpt_siskind_dnc": {
        "split=thirds": "choose one of bisection, binomial",
    },
    "comm_overlap": {
        "ranks=1": "2 ranks or more",
        "bucket_mb=0": "bucket_mb must be positive",
    },
    "compound_grow": {
        "ffn=0": "1 or more",
        "fractions=0.5": "two shares",
        "fractions=0.5/0.25": "two shares",
        "fractions=0/0.5": "two shares",
        "fractions=0.5/1": "two shares",
    },
    "dgc": {
        "momentum=1": r"lie in \[0, 1\)",
        "ratio=0": r"lies in \(0, 1\]",
        "factor=0": "positive",
    },
    "dota": {
        "bits=1": "2 to 16 bits",
        "weight=0": "else nothing trains them",
        "retention=0": r"in \(0, 1\], not 0",
        "rank=2": "share of a head's width",
    },
    "dp_ddp": {
        "ranks=1": "2 ranks or more",
    },
    "dtr": {
        "heuristic=fifo": "one of dtr, eq, local, lru, size, msps",
    },
    "early_bird": {
        "interval=-1": "0 or more",
        "penalty=-1": "0 or more",
        "threshold=1": "entries",
        "memory=1": "masks to compare",
        "share=1": "share of the units",
    },
    "earlybert": {
        "penalty=-1": "penalty",
        "search_rate=0": "search_rate",
        "search=0": "share of the steps",
        "heads=1": "shares to remove",
        "neurons=-0.1": "shares to remove",
    },
    "elsa": {
        "p=-1": "0 or more, not -1",
        "batches=0": "1 batch or more",
    },
    "flip": {
        "drop=-0.1": r"in \[0, 1\)",
        "drop=1": r"in \[0, 1\)",
        "tune=1": r"in \[0, 1\)",
    },
    "fp8_hybrid": {
        "margin=9": "0 to 8 powers of two",
        "amax_history=0": "1 step or more, not 0: without one use dynamic",
        "scaling=static": "choose one of delayed, dynamic",
    },
    "gact": {
        "interval=0": "1 or more steps",
        "adaptive=false,bits=3": "1, 2, 4, 8 or 32 bits, not 3",
        "bits=0.5": "from 1 to 32, not 0.5",
        "bits=33": "from 1 to 32, not 33",
    },
    "gpipe": {
        "micro_batches=0": "1 micro-batch or more, not 0",
    },
    "grand": {
        "runs=0": "at least 1",
        "offset=0.6": "hardest share to leave out",
        "scout=-0.1": "scout in",
        "keep=0": "share of the examples",
        "keep=1.5": "share of the examples",
    },
    "grasp": {
        "per_class=0": "1 or",
        "temperature=0": "positive",
        "sparsity=1": "share of zeros",
    },
    "int_only": {
        "step_bits=7": "-8 to 6, not 7",
    },
    "intrinsic_dim": {
        "dimension=0": "must be",
        "learning_rate_ratio=-1": "must be",
    },
    "is_gradnorm": {
        "threshold=-1": "0 samples in every step but the first",
        "threshold=nan": "0 samples in every step but the first",
        "presample=1": "2 or more batches",
        "momentum=1": r"in \[0, 1\)",
    },
    "kusumoto_dp": {
        "budget=-1": "from the least peak",
    },
    "l2l": {
        "micro_batches=0": "micro_batches is 1 or more",
    },
    "lamb": {
        "beta2=1": "beta2",
        "eps=0": "eps",
        "factor=0": "factor",
        "max_norm=0": "max_norm",
        "phi_high=1,phi_low=2": "phi_low",
        "variant=x": "variant",
    },
    "lars": {
        "factor=0": "factor",
        "momentum=1": "momentum",
        "trust_coefficient=0": "trust_coefficient",
        "variant=x": "variant",
        "weight_decay=-1": "weight_decay",
    },
    "lawa": {
        "k=0": "k",
        "interval=0": "interval",
        "interval=1.5": "interval",
    },
    "layerwise_trust": {
        "base=nadam": "base",
        "block=0": "block",
        "factor=0": "factor",
        "granularity=layer": "granularity",
        "phi_high=1,phi_low=2": "phi_low",
    },
    "linear_scaling_warmup": {
        "k=0": "k",
        "rate=0": "rate",
        "rate=inf": "rate",
        "rule=cubic": "rule",
        "warmup=1": "warmup",
    },
    "lora": {
        "rank=-1": "rank is 1 or more",
    },
    "lth_imp": {
        "rounds=-1": "0 or more",
        "rate=1": "in .0, 1.",
        "rewind=1": "share of the steps",
    },
    "mass": {
        "block=0": "share lies in",
        "share=0": "share lies in",
        "share=1.5": "share lies in",
    },
    "mesa": {
        "decay=-0.1": "0 for each batch's own",
        "decay=1": "0 for each batch's own",
        "decay=nan": "0 for each batch's own",
    },
    "mlm_mask_later": {
        "hidden=0": "a share",
        "late=0": "counts blocks",
        "rate=1": "share of tokens",
    },
    "mp_naive": {
        "ranks=1": "2 ranks or more, not 1",
    },
    "nesterov_agd": {
        "factor=-1": "momentum|factor|schedule",
        "momentum=1": "momentum|factor|schedule",
        "schedule=linear": "momentum|factor|schedule",
    },
    "onebit_adam": {
        "warmup=0": r"is in \(0, 1\]",
        "warmup=1.1": r"is in \(0, 1\]",
    },
    "overparam_convergence": {
        "width=0": "whole multiple",
    },
    "overparam_generalization": {
        "radius=-1": "distance",
        "width=0": "whole multiple",
    },
    "pipedream_2bw": {
        "micro_batches=1": "set micro_batches to 2 or more, not 1",
    },
    "pipedream_flush": {
        "micro_batches=0": "1 micro-batch or more, not 0",
    },
    "pipemare": {
        "micro_batches=0": "1 micro-batch or more",
        "annealed=0": "a share of the run's steps",
        "decay=1": "lies between 0 and 1",
    },
    "pld": {
        "theta=0": r"in \(0, 1\]",
        "gamma=0": "positive",
    },
    "powersgd": {
        "rank=0": "1 or more, not 0",
    },
    "prefix_tuning": {
        "hidden=0": "hidden, the",
        "length=-1": "length is 1",
    },
    "progressive_patch": {
        "stages=0": "1 or more",
        "patches=2/4": "falling",
    },
    "progressive_resolution": {
        "stages=0": "1 or more",
        "smallest=0": r"in \(0, 1\]",
        "sizes=8/4": "rising",
    },
    "progressive_stacking": {
        "fractions=0.5/0.2": "increasing",
        "stages=3": "need as many fractions",
    },
    "prompt_tuning": {
        "length=-1": "length is 1 or more",
        "learning_rate_ratio=0": "must be positive",
    },
    "prox_grad_momentum": {
        "factor=0": "factor|strength|penalty",
        "penalty=l2": "factor|strength|penalty",
        "strength=-1": "factor|strength|penalty",
    },
    "qsgd": {
        "bucket=0": "1 entry or more",
        "scale=mean": "choose one of norm, max",
        "bits=3": "packed in 2, 4, 8 bits, not in 3",
    },
    "rais": {
        "uniform=0": "biases the mean",
        "uniform=1.5": "biases the mean",
        "uniform=nan": "biases the mean",
        "refit=0": "number of steps",
    },
    "remat_heuristic": {
        "budget=-0.1": "share of the way",
    },
    "revolve": {
        "budget=2": "from the least peak",
    },
    "rigl": {
        "interval=1": "2 steps or more",
        "sparsity=1": "share of zeros",
    },
    "rotor": {
        "budget=-0.1": "from the least peak",
        "budget=1.1": "from the least peak",
    },
    "saf": {
        "epochs_ago=0": "epochs_ago",
        "start=1.5": "start",
        "start=nan": "start",
        "strength=-1": "strength",
        "temperature=0": "temperature",
    },
    "saf_mesa": {
        "decay=1": "decay",
        "start=-0.1": "start",
        "strength=-1": "strength",
        "temperature=nan": "temperature",
    },
    "sanger": {
        "decay=1": "decay of the moving mean",
        "bits=1": "has 2 to 16 bits, not 1",
        "threshold=1": r"in \[0, 1\), not 1: 1 would keep nothing",
        "threshold=-0.1": "is a probability",
    },
    "set": {
        "interval=-1": "1 step or more",
        "execution=block_sparse": "needs blocks",
        "epsilon=-1": "paper's is 20",
        "zeta=0": "share of connections that evolve",
        "sparsity=1": "share of zeros",
    },
    "skipinit": {
        "initial=-1": "skipinit: initial multiplies the branches",
    },
    "snip": {
        "block=0": "1 or more, not 0",
        "sparsity=1": "share of zeros",
    },
    "spgemm": {
        "sparsity=1": "share of zeros",
    },
    "ssl_prototypes": {
        "clusters=0": "number of prototypes",
        "keep=0": "share of the examples",
        "balance=1.5": "share of what equal pruning keeps",
        "scout=0": "steps of the embedder",
    },
    "svd_lowrank": {
        "rank=0": "1 or more, not 0",
    },
    "svite": {
        "interval=-1": "1 step",
        "death=0.001": "last_death",
        "sparsity=1": "share of zeros",
    },
    "swapadvisor": {
        "generations=-1": "generations is .*0 or more",
        "population=-1": "population is .*2 or more",
        "seed=-1": "seed is .*0 or more",
    },
    "tflms": {
        "threshold=-1": "0 or more",
    },
    "topk_ef": {
        "ranks=1": "2 or more, not 1",
        "ratio=-1": r"lies in \(0, 1\]",
        "ratio=0": r"lies in \(0, 1\]",
        "ratio=1.5": r"lies in \(0, 1\]",
    },
    "torch_autoac": {
        "budget=2": "from 0 to 1",
        "solver=best": "one of dp, greedy, ilp",
    },
    "torch_sac": {
        "every=0": "1 or more products",
    },
    "tp_megatron": {
        "ranks=1": "2 ranks or more, not 1",
    },
    "train_large_compress": {
        "bits=1": "2 to 16",
        "rounds=0": "rounds 1 or more",
        "stop=0": "share of the reference",
        "sparsity=1": "share of zeros",
        "width=0": "whole multiple",
    },
    "vdnn": {
        "flops_per_byte=0": "above 0",
        "policy=conv": "dyn, all, inputs",
    },
    "vitcod": {
        "weight=-1": "0 or more",
        "batches=0": "1 batch or more",
        "information=0": r"in \(0, 1\], not 0",
        "first=1": r"in \[0, 1\), not 1",
    },
    "vpt": {
        "length=-1": "length is 1 or more",
        "learning_rate_ratio=0": "must be positive",
    },
    "zero1": {
        "ranks=1": "2 ranks or more",
        "bucket_mb=0": "bucket_mb must be positive",
    },
    "zero_infinity_param": {
        "tier=tape": "choose one of host, file",
        "tier_gb=0": "tier_gb is positive",
        "tiles=0": "tiles is 1 or more",
        "window=-1": "window is 0 blocks or more",
    },
    "zero_offload": {
        "delay_after=-1": "delay_after is a number of steps",
    },
}
"""By entry: a setting, and a part of the sentence, as a pattern."""


@pytest.mark.parametrize(
    ("stack", "sentence"),
    [
        pytest.param(f"{id}:{settings}", sentence, id=f"{id}-{settings}")
        for id, refused in REFUSED.items()
        for settings, sentence in refused.items()
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_what_fits(stack: str, sentence: str) -> None:
    with pytest.raises(StackError, match=sentence):
        build(stack)


class On(NamedTuple):
    """A stack that a run of this baseline refuses, in its first step at the latest, and a part of the sentence."""

    stack: str
    baseline: str
    sentence: str
    recipe: RecipeName = "classic"
    size: Size = "pico"


ON_BASELINES = [
    On("actnn", "gpt", "use the recipe modern", recipe="compiled"),
    On("adapter_houlsby:bottleneck=64", "bert", "set bottleneck to 8 or less"),
    On("autoprog", "gpt", "pictures"),
    On("autoprog", "mae", "does not take pictures of 4x4"),
    On("autoprog", "vit", "modern", recipe="compiled"),
    On("autoprog+progressive_resolution", "vit", "keep one of them"),
    On("bert2bert+layerscale", "gpt", "put it last"),
    On("bert2bert:depth=4", "gpt", "has 2 blocks, which depth=4 does not divide: use one of 1, 2"),
    On("bert2bert:width=4", "gpt", "has 2 heads, which 4 does not divide: use one of 1, 2"),
    On("compound_grow:depth=4", "gpt", "has 2 blocks, which depth=4 does not divide: use one of 1, 2"),
    On("compound_grow:ffn=3", "gpt", "has 128 MLP units, which 3 does not divide"),
    On("compound_grow:length=5", "gpt", "cannot be cut into 5 pieces"),
    On("dota:retention=0.02", "gpt", r"retention=0\.02 of 16 keys is none: give 0\.0625 or more"),
    On("gact", "gpt", "use the recipe modern", recipe="compiled"),
    On("intrinsic_dim:dimension=2", "bert", "does not fit: more than the 2 scales"),
    On("intrinsic_dim:dimension=10000000", "bert", "does not fit: more than the 2 scales"),
    On("is_gradnorm", "mae", "error of its predicted classes, and the loss of mae"),
    On("lora:rank=65", "bert", "rank 65 is more than an update of .*query, 64 x 64.* choose 1 to 64", size="nano"),
    On("lora:targets=q_proj/value", "bert", "no layer is called q_proj: name query, .* query, key, value, dense"),
    On("lora:targets=query/c_attn", "gpt", "is named twice among the targets"),
    On("pld", "gpt", "modern", recipe="compiled"),
    On("progressive_patch", "gpt", "pictures"),
    On("progressive_patch:patches=3/2", "vit", "choose of 8, 4, 2, the last 2"),
    On("progressive_patch:patches=8/4", "vit", "choose of 8, 4, 2, the last 2"),
    On("progressive_resolution", "vit", "modern", recipe="compiled"),
    On("progressive_resolution+progressive_patch", "vit", "keep one of them"),
    On("progressive_resolution:sizes=16/64", "gpt", "up to 16"),
    On("progressive_resolution:sizes=3/8", "vit", "multiples of the patch, 2, up to 8"),
    On("progressive_resolution:sizes=4/6", "vit", "multiples of the patch, 2, up to 8"),
    On("prompt_tuning", "vit", "takes no embeddings in place of tokens"),
    On("rais", "mae", "error of its predicted classes, and the loss of mae"),
    On("ssl_prototypes", "bert", "mae cannot learn from the examples of bert without pixels"),
    On("ssl_prototypes:clusters=40", "vit", "40 prototypes for 32 examples"),
    On("ssl_prototypes:embedder=vit", "vit", "vit cannot learn from the examples of vit without labels"),
    On("vpt", "gpt", "does not cut pictures into patches"),
]

PICTURES = "pictures|patches"
ON_MODELS = {
    "adapter_houlsby:bottleneck=4": {"deit3": "learned scale already"},
    "autoprog": dict.fromkeys(("swin", "pvt", "beit", "xcit"), "pictures|patches|alike|left out"),
    "bert2bert": {
        "falcon": "fewer keys than queries",
        "mixtral": "ends in no linear layer",
        "t5": "not all alike",
        "beit": "does not run at another width",
        "eva02": "85 MLP units, which 2 does not divide: use one of 1, 5, 17, 85",
        "xcit": "several stacks",
    },
    "bitfit": dict.fromkeys(("phi3", "mixtral", "t5"), "have no bias terms"),
    "compound_grow": {
        "mixtral": "ends in no linear layer",
        "swin": "3 blocks, which depth=2",
        "beit": "for each token",
    },
    "dota": {"pvt": "take a model without pooled or rearranged tokens"},
    "fixup": {
        "mixtral": r"model\.layers\.0\.mlp ends in several experts",
        "swinv2": "reads the weight of .*qkv without calling it",
        "eva02": "reads the weight of .*qkv without calling it",
        "deit3": "learned scale already",
    },
    "flashattention": dict.fromkeys(("beit", "swin"), "a mask that learns"),
    "layerscale": dict.fromkeys(("deit3", "cait", "swinv2"), "learned scale already"),
    "lora:dropout=0.1": dict.fromkeys(("beit", "eva02"), "no input to drop out"),
    "pld": {"t5": "cannot be left out", "albert": "not once", "deit3": "scale"},
    "prefix_tuning": {"bloom": "cannot be swapped"},
    "progressive_patch": dict.fromkeys(("swin", "pvt", "beit", "xcit"), PICTURES),
    "progressive_resolution": dict.fromkeys(("swin", "pvt", "beit", "xcit"), PICTURES),
    "progressive_stacking": {"swin": "not all alike", "albert": "no shallower stack"},
    "rezero": dict.fromkeys(("deit3", "cait", "xcit"), "learned scale already"),
    "skipinit": {"cait": "learned scale already"},
    "tfixup": {"albert": "is no sum of parameters", "mixtral": "finds no linear layers"},
    "vpt": dict.fromkeys(("swin", "beit", "eva02"), "use a plain vision Transformer|cannot read 5 tokens more"),
}
"""By stack: a further model, and a part of the sentence."""


@pytest.mark.parametrize("case", ON_BASELINES, ids=lambda case: "-".join((*case.stack.split(":"), case.baseline)))
def test_what_a_baseline_does_not_allow_is_refused(case: On) -> None:
    task = reference_of(case.stack)[1]
    with pytest.raises(ValueError, match=case.sentence):
        new_run(case.baseline, case.stack, size=case.size, recipe=case.recipe, task=task, steps=8).train(1)


@pytest.mark.parametrize(
    ("stack", "model", "sentence"),
    [
        pytest.param(stack, model, sentence, id=f"{stack.replace(':', '-')}-{model}")
        for stack, refused in ON_MODELS.items()
        for model, sentence in refused.items()
    ],
)
def test_what_a_users_model_does_not_allow_is_refused(stack: str, model: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        further_run(model, stack)
