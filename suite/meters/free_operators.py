"""Lists the operators that have no FLOPs by the papers' convention, which counts matrix products, convolutions and
attention.

Elementwise operators, reductions along dimensions, normalisations, losses, pooling, copies and random numbers cost
bandwidth, not FLOPs. Torch tags the pointwise ones, reductions and views; the others are named here. What is neither
free by this list nor has a formula (a recurrent layer, a decomposition, distances, a fused encoder layer, an operator
of somebody else's) may be matrix work: a count of FLOPs lists it by name (:mod:`suite.meters.flops`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

LIBRARIES = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler"})
"""Whose operators are known. Of these only ``aten`` has matrix work."""

TAGS = frozenset(
    getattr(torch.Tag, name) for name in ("pointwise", "reduction", "view_copy") if hasattr(torch.Tag, name)
)

FREE = re.compile(
    r"""
    # made
    (new_)? (empty | full | ones | zeros | rand | randn | randint) (_like | _strided | _permuted)? | arange | range |
    eye | _efficientzerotensor | linspace | logspace | scalar_tensor | randperm | tri[lu]_indices | \w+_window |
    # drawn
    bernoulli | binomial | cauchy | exponential | geometric | log_normal | multinomial | normal (_functional)? |
    poisson | random | uniform | native_dropout (_backward)? | _masked_scale | _philox_\w+ | _standard_gamma (_grad)? |
    _sample_dirichlet |
    # moved
    copy | _to_copy | _copy_from\w* | \w+_copy | clone | _lazy_clone | lift\w* | detach | alias | fill | zero | cat |
    _?stack | _chunk_cat | unsafe_split\w* | index (_\w+)? | _index_put_impl | _unsafe_ (masked_)? index\w* | gather |
    scatter\w* | \w+_scatter | (select | slice | diagonal | unfold) _backward | masked_ (fill | select | scatter) \w* |
    put | take | flip | roll | rot90 | repeat\w* | tri[lu] | \w+_pad\w* | (un)?pad\w* | pixel_ (un)?shuffle |
    channel_shuffle | im2col | col2im | block_diag | diag_embed | nonzero\w* | _?unique\w* | sort | topk | kthvalue |
    searchsorted | bucketize | isin | embedding\w* | _embedding_bag\w* | set | resize\w* | _resize_output | as_strided |
    squeeze | unsqueeze | t | transpose | _unsafe_view | _pin_memory | record_stream | complex | polar |
    to_padded_tensor | _padded_dense\w* | _pack_padded\w* |
    # asked of a tensor
    _?is_\w+ | _local_scalar_dense | _assert\w* | _functional_\w+ | _has_same_storage_numel | allclose | equal |
    device | sym_\w+ | _make_dep_token | _validate\w* | _amp_\w+ |
    # sparse or quantised, and back
    _nnz | (sparse | dense) _dim\w* | _dim[IV] | _coalesce\w* | _to_ (dense | sparse) \w* | sparse_mask |
    _?sparse_ \w* _tensor\w* | (_?fake_)? quantize_per_\w+ | dequantize | int_repr |
    # reduced
    sum | _sparse_sum\w* | cum (sum | prod | max | min) | _cum (max | min) _helper | _?logcumsumexp | trace | dist |
    renorm | bincount | hist\w* | _histogramdd\w* | _?segment_reduce\w* | (nan)?median | mode | _?aminmax |
    # normalised
    _? (safe_ | masked_ | log_ | sparse_ | sparse_log_)? softmax (_backward)? (_data)? | _?native_norm |
    (_?native_ | cudnn_ | _)? (batch | layer | group | rms) _norm\w* | _fused_rms_norm\w* | _weight_norm_interface\w* |
    # losses
    (nll | mse | huber | smooth_l1 | soft_margin | multi_margin | multilabel_margin) _loss\w* |
    binary_cross_entropy\w* | _ (cudnn_)? ctc_loss\w* | _use_\w*ctc_loss |
    # pooled
    \w* (avg | max) _ (un)?pool\w* | _?upsample_\w+ | \w*grid_sampler\w* |
    # elementwise, and not tagged so
    (elu | glu | hardshrink | hardsigmoid | hardswish | hardtanh | leaky_relu | log_sigmoid | softplus | softshrink |
    threshold | prelu | gelu | mish | silu | tanh | sigmoid | logit) _\w+ | _prelu_kernel\w* | rrelu_with_noise\w* |
    hardswish | glu | _add_relu | floor_divide | (linalg_)? cross | __i? (and | or | xor | lshift | rshift) __
    """,
    re.VERBOSE,
)


@cache
def free(packet: Any) -> bool:
    """Tells whether an operator (of any overload) has no FLOPs that are counted by convention."""
    library, _, name = str(packet).partition(".")
    if library != "aten":
        return library in LIBRARIES
    if name.startswith(("_foreach_", "_fused_ada", "_fused_sgd")):
        return name != "_foreach_mm"
    out_of_place = name.removesuffix("_")
    return FREE.fullmatch(out_of_place) is not None or any(
        _is_view_or_tagged(getattr(torch.ops.aten, own, None)) for own in (name, out_of_place)
    )


def _is_view_or_tagged(packet: Any) -> bool:
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    return any(overload.is_view or TAGS & set(overload.tags) for overload in overloads)
