"""Mixed precision in bfloat16 (Kalamkar et al., 2019, arXiv 1905.12322): matrix products read bfloat16 casts of float32
weights and activations; weights, their gradients and the optimizer's state stay float32.

bfloat16 has float32's eight bits of exponent, so that gradients do not underflow and no loss scale is needed; with
eight bits of significand its products round 2^-9 relative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from suite.contract.run import Run
from suite.contract.sites import Act, Site
from suite.contract.technique import Technique
from techniques.shared.half_precision import cast, noting


@dataclass
class AmpBf16(Technique):
    """Autocast to bfloat16."""

    casts: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        return cast(model, run, torch.bfloat16)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"products in bfloat16": noting(run, torch.bfloat16, self.casts)}
