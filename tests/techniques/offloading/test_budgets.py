"""Every plan that moves fits the least budget that there is, and below it says which one would do."""

from __future__ import annotations

import pytest

from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from techniques.offloading.autoswap.technique import AutoSwap
from techniques.offloading.capuchin.technique import Capuchin
from techniques.offloading.offload_dp.technique import OffloadDP
from techniques.offloading.pofo.technique import POFO
from techniques.offloading.shared.offloaded import Offloaded, candidates, least_peak
from techniques.offloading.shared.offloaded_probes import even_link
from techniques.offloading.swapadvisor.technique import SwapAdvisor
from techniques.offloading.tflms.technique import TFLMS
from techniques.offloading.vdnn.technique import VDNN
from techniques.shared.persistent_probes import unlike_chains

MOVES_ALL = {"autoswap": AutoSwap(), "offload_dp": OffloadDP(), "swapadvisor": SwapAdvisor(), "tflms": TFLMS()}
RUNS_AGAIN = {"capuchin": Capuchin(), "pofo": POFO()}


@pytest.mark.parametrize("own", [*MOVES_ALL.values(), VDNN(policy="all")], ids=[*MOVES_ALL, "vdnn"])
def test_the_least_budget_is_planned_for_and_one_byte_less_is_refused_with_it(own: Offloaded) -> None:
    for chain in unlike_chains(2):
        link = even_link(chain)
        least = least_peak(chain, candidates(chain), link)
        assert predicted(own.solve(chain, least, link), chain, link).peak_bytes <= least
        with pytest.raises(Infeasible) as refused:
            own.solve(chain, least - 1, link)
        assert refused.value.least_bytes == least


@pytest.mark.parametrize("own", RUNS_AGAIN.values(), ids=RUNS_AGAIN)
def test_no_plan_fits_nothing(own: Offloaded) -> None:
    (chain,) = unlike_chains(1)
    with pytest.raises(Infeasible, match="its least is"):
        own.solve(chain, 0, even_link(chain))
