"""The second tier: equal to the bit, stored once, counted as the device's only where it is on the device, and full."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import current_thread, main_thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from suite.chain.tiers import FileTier, HostTier, Tier, TierFull
from suite.meters.tensors import TensorBytes

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@pytest.fixture(params=["host", "file", "paced"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    if request.param == "file":
        return FileTier(tmp_path / "tier")
    return HostTier(link_bytes_per_s=1e9 if request.param == "paced" else None)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES), st.booleans())
def test_what_comes_back_is_what_went_to_the_bit(shape: list[int], dtype: torch.dtype, transposed: bool) -> None:
    tensor = torch.randn(shape).mul(10).to(dtype)
    tensor = tensor.transpose(0, -1) if transposed and tensor.ndim else tensor
    tier = HostTier()
    back = tier.store(tensor).take()
    assert torch.equal(back, tensor) and back.stride() == tensor.stride() and back.dtype == tensor.dtype
    assert tier.bytes_out == tier.bytes_in == tier.peak_bytes == tensor.untyped_storage().nbytes()
    assert tier.held_bytes == 0


def test_nan_and_negative_zero_come_back(tier: Tier) -> None:
    tensor = torch.tensor([float("nan"), -0.0, float("inf")])
    assert torch.equal(bits(tier.store(tensor).take()), bits(tensor))


def test_views_of_one_storage_are_stored_once_and_share_it_again(tier: Tier) -> None:
    whole = torch.randn(4, 6)
    upper, lower = tier.store(whole[:2]), tier.store(whole[2:].t())
    assert tier.held_bytes == tier.bytes_out == whole.nbytes
    first, second = upper.take(), lower.take()
    assert torch.equal(first, whole[:2]) and torch.equal(second, whole[2:].t())
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    assert tier.bytes_in == whole.nbytes and tier.held_bytes == 0


def test_a_changed_tensor_is_another(tier: Tier) -> None:
    tensor = torch.zeros(3)
    before = tier.store(tensor)
    before.wait()
    after = tier.store(tensor.add_(1))
    assert before.take().sum() == 0 and after.take().sum() == 3


def test_weights_stay_and_change_in_the_tier(tier: Tier) -> None:
    weight = torch.arange(4.0)
    stored = tier.store(weight)
    for _ in range(2):
        assert torch.equal(stored.take(keep=True), weight)
    tier.worker.submit(lambda: stored.host().mul_(2)).result()
    assert torch.equal(stored.take(keep=True), 2 * weight)
    stored.write(weight)
    assert torch.equal(stored.take(keep=True), weight)
    assert (tier.bytes_out, tier.bytes_in, tier.held_bytes) == (32, 64, 16)
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        stored.write(weight.double())
    stored.free()
    stored.free()
    assert tier.held_bytes == stored.nbytes == 0
    with pytest.raises(RuntimeError, match="keep=True"):
        stored.take()


def test_what_begins_in_the_tier_costs_no_traffic(tier: Tier) -> None:
    moment = tier.zeros(tier.store(torch.ones(2, 3, dtype=torch.bfloat16)), torch.float32)
    assert (tier.held_bytes, tier.bytes_out) == (12 + 24, 12)
    assert torch.equal(moment.host(), torch.zeros(2, 3))


def live(step: Callable[[], None]) -> int:
    with TensorBytes() as meter:
        step()
    return meter.peak_bytes


def away(tier: Tier) -> None:
    stored = tier.store(torch.zeros(1000))
    torch.zeros(600)
    stored.take()


@pytest.mark.parametrize("values", [True, False])
def test_a_tiers_bytes_are_not_the_devices(values: bool) -> None:
    """Of 4000 and 2400 bytes the device holds one at a time, with values and without."""
    if values:
        assert live(lambda: away(HostTier())) == 4000
    else:
        with FakeTensorMode():
            tier = HostTier()
            assert live(lambda: away(tier)) == 4000
        assert (tier.bytes_out, tier.bytes_in, tier.peak_bytes, tier.held_bytes) == (4000, 4000, 4000, 0)


def test_a_paced_link_waits_out_each_transfer_beside_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[bool, float]] = []

    def wait(moment_s: float, awake_s: float = 0.0) -> None:
        waits.append((current_thread() is main_thread(), moment_s - began_s))

    monkeypatch.setattr("suite.chain.tiers._sleep_until", wait)
    began_s = time.perf_counter()
    tier = HostTier(link_bytes_per_s=1e3)  # 20 seconds each, but for the clock
    tensors = [torch.randn(5000) for _ in range(3)]
    stored = [tier.store(each) for each in tensors]
    for each in stored:
        each.fetch()
        each.fetch()
    assert all(torch.equal(each.take(), tensor) for each, tensor in zip(stored, tensors, strict=True))
    tier._out.thread.shutdown()
    tier._in.thread.shutdown()
    lanes, callers = ([seconds for here, seconds in waits if here == asked] for asked in (False, True))
    assert sorted(round(seconds / 20) for seconds in lanes) == [1, 2, 2, 3, 3, 4]  # each begins at another's end
    assert [round(seconds / 20) for seconds in callers] == [2, 3, 4]
    assert tier.bytes_in == 60000


@pytest.mark.parametrize("values", [True, False])
def test_a_tier_too_small_says_what_would_fit_and_keeps_what_it_has(values: bool) -> None:
    tier = HostTier(capacity_bytes=100)
    with torch.no_grad() if values else FakeTensorMode():
        stored = tier.store(torch.ones(20))
        with pytest.raises(TierFull, match="of 100 bytes holds 80, and 40 more do not fit: give it 120 or more"):
            tier.store(torch.ones(10))
        assert stored.take().shape == (20,)
    assert tier.store(torch.ones(25)).take().sum() == 25, "there is room again"


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = FileTier(tmp_path)
    stored = tier.store(torch.ones(20))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TierFull, match=r"holds 80 bytes and needs 40 more, but .* free: make room"):
        tier.store(torch.ones(10))
    assert stored.take().sum() == 20 and tier.held_bytes == 0


def test_no_file_is_left_even_while_it_is_used(tmp_path: Path) -> None:
    tier = FileTier(tmp_path / "new" / "folder")
    stored = tier.store(torch.ones(10))
    assert list(tier.folder.iterdir()) == []
    assert stored.take().sum() == 10


def test_what_is_no_dense_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="dense tensors"):
        HostTier().store(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="capacity_bytes is 0 or more"):
        HostTier(capacity_bytes=-1)
    with pytest.raises(ValueError, match="link_bytes_per_s is positive"):
        HostTier(link_bytes_per_s=0)
