"""Offers optimizers of the catalogue, for your own training loop: drop-in replacements of torch's.

===============  ====================================================================================================
Adam             Kingma & Ba 2015 (arXiv 1412.6980); coupled or decoupled decay, with or without bias correction
AdamW            Loshchilov & Hutter 2019 (arXiv 1711.05101), in torch's form of the decay
AdamW8bit        Dettmers et al. 2022 (arXiv 2110.02861): both moments in a byte each, with a scale for each block
AdamW4bit        Li et al. 2023 (arXiv 2309.01507): half a byte each; the second with scales of rows and columns
ACClip           Zhang et al. 2020 (arXiv 1912.03194): clips each coordinate of the momentum
AGD              Nesterov 1983: the gradient is taken ahead of the momentum
APGnc            Li et al. 2017 (arXiv 1705.04925): proximal gradient with momentum; ``step`` takes a closure
Lion             Chen et al. 2023 (arXiv 2302.06675): the sign of an interpolation; one state buffer
SGD              Sutskever et al. 2013, after Polyak 1964: one decaying sum of the past gradients
Lamb             You et al. 2020 (arXiv 1904.00962): layer-wise rates on Adam's direction
Lars             You et al. 2017 (arXiv 1708.03888): layer-wise rates on SGD's direction
LayerwiseTrust   You et al. 2020 (arXiv 1904.00962), Algorithm 1: any of three base directions, rescaled by layer
===============  ====================================================================================================

All take ``params`` as torch's optimizers do (parameters of any shape, or groups), ``lr`` in parameter units a step, and
raise ValueError for hyper-parameters out of range. State has each parameter's shape.

    >>> optimizer = leantrain.optim.Lion(model.parameters(), lr=1e-4, weight_decay=1.0)
    >>> loss.backward()
    >>> optimizer.step()

On CUDA those with a kernel update all parameters in one launch, and ``optimizer.clip(1.0)`` before a step, the
unscaling of ``torch.amp.GradScaler`` and stochastic rounding of bfloat16 parameters are part of it.

All but APGnc have ``maximize``; those that torch has, too, have ``foreach`` and ``capturable``: Adam, AdamW and SGD.
State is float32 for bfloat16 and float16 parameters; those of FSDP2 are updated shard by shard; torch's own checkpoints
load.

Wrappers of any optimizer are ``SAM``, ``ESAM``, ``SAF`` and ``MESA`` (`leantrain.wrappers`); ``LAWA`` averages weights
(`leantrain.averaging`). ``sam_ascend`` and ``sam_restore`` are the two halves of SAM:

    >>> optimizer = SAM(Lion(model.parameters(), lr=1e-4), rho=0.05)
    >>> loss_of(model).backward()
    >>> with optimizer.worst_point():                 # of a ball of radius rho around the weights
    ...     loss_of(model).backward()                 # the gradient is taken there
    >>> optimizer.step()                              # and the step is made from here
"""

from typing import Any

from leantrain.averaging import LAWA as LAWA
from leantrain.wrappers import ESAM as ESAM
from leantrain.wrappers import MESA as MESA
from leantrain.wrappers import SAF as SAF
from leantrain.wrappers import SAM as SAM
from techniques.large_batch.lamb.technique import Lamb as Lamb
from techniques.large_batch.lars.technique import Lars as Lars
from techniques.large_batch.layerwise_trust.technique import LayerwiseTrust as LayerwiseTrust
from techniques.optimizers.acclip.technique import ACClip as ACClip
from techniques.optimizers.adam.technique import Adam as Adam
from techniques.optimizers.adamw.technique import AdamW as AdamW
from techniques.optimizers.lion.technique import Lion as Lion
from techniques.optimizers.nesterov_agd.technique import AGD as AGD
from techniques.optimizers.prox_grad_momentum import optimizer as proximal
from techniques.optimizers.prox_grad_momentum.iterations import Penalty
from techniques.optimizers.sgd_momentum.technique import SGD as SGD
from techniques.precision.adam4bit_rank1.optimizer import AdamW4bit as AdamW4bit
from techniques.precision.adam8bit_blockwise.optimizer import AdamW8bit as AdamW8bit
from techniques.sharpness.shared.ascent import ascend as sam_ascend
from techniques.sharpness.shared.ascent import restore as sam_restore

__all__ = [
    "AGD",
    "ESAM",
    "LAWA",
    "MESA",
    "SAF",
    "SAM",
    "SGD",
    "ACClip",
    "APGnc",
    "Adam",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "Lamb",
    "Lars",
    "LayerwiseTrust",
    "Lion",
    "sam_ascend",
    "sam_restore",
]


class APGnc(proximal.APGnc):
    """Implements proximal gradient with momentum, on the smooth loss that ``step``'s closure gives plus ``strength``
    times the penalty ``kind``; ``units`` is of the output units that a group penalty holds together."""

    def __init__(
        self, params: Any, lr: float = 1e-3, strength: float = 0.0, kind: Penalty = "l1", units: int = 0
    ) -> None:
        super().__init__(params, lr, strength, kind, units)
