import time

import pytest
import torch

from suite.meters.clock import Clock


def test_time_goes_forward_and_sleep_takes_no_cpu():
    clock = Clock("cpu")
    start_s, start_cpu_s = clock.now_s(), clock.cpu_s()
    with clock.span() as span:
        time.sleep(0.05)
    assert 0.05 <= span.elapsed_s <= clock.now_s() - start_s
    assert clock.cpu_s() - start_cpu_s < 0.05


def test_cpu_seconds_include_other_threads():
    import threading

    def spin():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    clock = Clock()
    before_s = clock.cpu_s()
    threads = [threading.Thread(target=spin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.cpu_s() - before_s >= 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_span_waits_for_its_own_work():
    clock = Clock("cuda")
    x = torch.randn(2048, 2048, device="cuda")
    start_s = clock.now_s()
    with clock.span() as span:
        for _ in range(20):
            x = x @ x
    assert 0 < span.elapsed_s <= clock.now_s() - start_s
