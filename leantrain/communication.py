"""Offers compressed gradients of the catalogue, for the communication of your own data-parallel ranks.

=====================  ==============================================================================================
top_k, scattered       the largest entries as values and indices (Stich et al. 2018, arXiv 1809.07599)
corrected              the same of summed velocities, with momentum masking (Lin et al. 2018, arXiv 1712.01887)
one_bit, two_valued    a bit an entry, two values a column (Seide et al., Interspeech 2014)
quantized,             random levels of a bucket's scale, without bias (Alistarh et al. 2017, arXiv 1610.02132)
dequantized
projected,             a step of power iteration (Vogels et al. 2019, arXiv 1905.13727)
orthogonalised
truncated              the largest singular values
signs, signed          a bit an entry and a tensor's root mean square; mean_of_signs exchanges them there and back
mean_of_signs          (Tang et al. 2021, arXiv 2102.02888), with FrozenAdam as the optimizer
=====================  ==============================================================================================

All are functions of tensors; what they give is what is sent, packed, and the second of a pair is the first's inverse.
Those with a bias need a memory of what they left out, which is added to the next gradient:

    >>> error = torch.zeros(8, 4)
    >>> wanted = torch.randn(8, 4) + error
    >>> values, indices = leantrain.communication.top_k(wanted, ratio=0.1)    # send these
    >>> error = wanted - leantrain.communication.scattered(values, indices, wanted.shape)
"""

from techniques.communication.dgc.technique import corrected as corrected
from techniques.communication.onebit_adam.optimizer import FrozenAdam as FrozenAdam
from techniques.communication.onebit_adam.two_sided import Layout as Layout
from techniques.communication.onebit_adam.two_sided import mean_of_signs as mean_of_signs
from techniques.communication.onebit_adam.two_sided import signed as signed
from techniques.communication.onebit_adam.two_sided import signs as signs
from techniques.communication.onebit_sgd.technique import one_bit as one_bit
from techniques.communication.onebit_sgd.technique import two_valued as two_valued
from techniques.communication.powersgd.technique import orthogonalised as orthogonalised
from techniques.communication.powersgd.technique import projected as projected
from techniques.communication.qsgd.technique import dequantized as dequantized
from techniques.communication.qsgd.technique import quantized as quantized
from techniques.communication.shared.sparse import scattered as scattered
from techniques.communication.shared.sparse import top_k as top_k
from techniques.communication.svd_lowrank.technique import truncated as truncated

__all__ = [
    "FrozenAdam",
    "Layout",
    "corrected",
    "dequantized",
    "mean_of_signs",
    "one_bit",
    "orthogonalised",
    "projected",
    "quantized",
    "scattered",
    "signed",
    "signs",
    "top_k",
    "truncated",
    "two_valued",
]
