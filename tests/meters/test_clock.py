import time

import pytest
import torch

from suite.meters.clock import Clock


def test_time_goes_forward_by_what_passed():
    clock = Clock("cpu")
    start_s, outside_s = clock.now_s(), time.perf_counter()
    time.sleep(0.01)
    outside_s = time.perf_counter() - outside_s
    assert 0.01 <= outside_s <= clock.now_s() - start_s


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_clock_waits_for_the_device():
    clock = Clock("cuda")
    x = torch.randn(2048, 2048, device="cuda")
    done = torch.cuda.Event()
    for _ in range(20):
        x = x @ x
    done.record()
    clock.now_s()
    assert done.query()
