import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.meters.flops import FlopCounter
from suite.meters.state import gradient_bytes, parameter_bytes, state_bytes
from suite.meters.tensors import KINDS, TensorBytes
from tests.meters.models import Transformer, tokens, train_step

CONFIGURATIONS = [(False, False), (True, False), (True, True)]
MIB = 2**20


def made(fused=False, checkpointed=False, steps=1):
    torch.manual_seed(0)
    model = Transformer(fused, checkpointed)
    optimizer, batch = torch.optim.AdamW(model.parameters()), tokens()
    for _ in range(steps):
        train_step(model, optimizer, batch)
    return model, optimizer, batch


def measured(step, *seed):
    with TensorBytes().seed(*seed) as meter:
        step(*seed)
    return meter


class MinimalPeak(TorchDispatchMode):
    """The peak and nothing else: no hooks, no labels. What the meter measures must not depend on its watching."""

    def __init__(self, seeds):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0
        for tensor in seeds:
            self.track(tensor)

    def track(self, tensor):
        storage = tensor.untyped_storage()
        if (key := storage._cdata) not in self.live:
            self.live[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, key)

    def free(self, key):
        self.now -= self.live.pop(key, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.track(leaf)
        return out


@pytest.mark.parametrize(("fused", "checkpointed"), CONFIGURATIONS)
def test_peak_is_torchs_tracker_s_to_the_byte(fused, checkpointed):
    model, optimizer, batch = made(fused, checkpointed)
    meter = measured(train_step, model, optimizer, batch)

    model, optimizer, batch = made(fused, checkpointed)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, batch)
    with tracker:
        train_step(model, optimizer, batch)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    assert meter.peak_bytes == peak["Total"]
    assert meter.peak_by_kind["optimizer_state"] == sum(
        t.nbytes for s in optimizer.state.values() for t in s.values() if t.numel() > 1
    )


@pytest.mark.parametrize(("fused", "checkpointed"), CONFIGURATIONS)
def test_watching_changes_nothing(fused, checkpointed):
    model, optimizer, batch = made(fused, checkpointed)
    meter = measured(train_step, model, optimizer, batch)

    model, optimizer, batch = made(fused, checkpointed)
    state = [t for s in optimizer.state.values() for t in s.values()]
    gradients = [p.grad for p in model.parameters()]
    with MinimalPeak([*model.parameters(), *model.buffers(), *gradients, *state, batch]) as minimal:
        del gradients, state
        train_step(model, optimizer, batch)
    # One-element step counters are nobody's state, yet they are live.
    assert meter.peak_bytes == minimal.peak


@pytest.mark.parametrize(("fused", "checkpointed"), CONFIGURATIONS)
def test_kinds_sum_to_the_peak_and_state_is_whole(fused, checkpointed):
    model, optimizer, batch = made(fused, checkpointed)
    meter = measured(train_step, model, optimizer, batch)
    assert set(meter.peak_by_kind) == set(KINDS)
    assert sum(meter.peak_by_kind.values()) == meter.peak_bytes
    assert meter.peak_by_kind["parameters"] == parameter_bytes(model) + model.scale.nbytes
    assert meter.peak_by_kind["optimizer_state"] == state_bytes(optimizer)
    assert meter.peak_by_kind["inputs"] == batch.nbytes


def test_activations_are_what_the_forward_leaves_for_the_backward():
    x, weight = torch.randn(256, 256), nn.Parameter(torch.randn(256, 256))
    model = nn.ParameterList([weight])

    def step(*_):
        (x @ weight + 1).exp().sum().backward()

    meter = measured(step, model, None, x)
    n = x.nbytes
    # Left by the forward: exp's output, which it saves; the loss and its gradient, 1. The sums before exp are gone.
    assert meter.peak_by_kind["activations"] == n + 8
    # At the peak, inside exp's backward: the gradient of its input. The weight's comes when exp's output is gone.
    assert (meter.peak_by_kind["temporaries"], meter.peak_by_kind["gradients"]) == (n, 0)


def test_a_gradient_is_a_gradient_even_if_it_is_freed_before_the_step_or_within_the_backward():
    for eager_release in (False, True):
        model = nn.Linear(512, 512, bias=False)
        if eager_release:
            model.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))

        def step(model, _, x):
            model(x).sum().backward()
            model.weight.grad = None

        meter = measured(step, model, None, torch.randn(2, 512))
        assert meter.peak_by_kind["gradients"] == model.weight.nbytes


def test_accumulated_gradients_are_temporaries():
    model, x = nn.Linear(512, 512, bias=False), torch.randn(2, 512)
    model(x).sum().backward()
    meter = measured(lambda *_: model(x).sum().backward(), model, None, x)
    assert meter.peak_by_kind["gradients"] == gradient_bytes(model) == model.weight.nbytes
    assert meter.peak_by_kind["temporaries"] >= model.weight.nbytes


def test_a_recomputed_segment_s_activations_are_activations():
    plain, again = (measured(train_step, *made(checkpointed=c)).peak_by_kind for c in (False, True))
    assert 0 < again["activations"] < plain["activations"]


def test_views_in_place_and_resize():
    x = torch.zeros(MIB, dtype=torch.uint8)

    def step(*_):
        y = x.view(1024, 1024).t()[::2].add_(1)  # nothing new
        z = torch.empty(0, dtype=torch.uint8).resize_(3 * MIB)
        z.untyped_storage().resize_(0)  # not dispatched
        return y, torch.empty(2 * MIB, dtype=torch.uint8)

    meter = measured(step, None, None, x)
    assert meter.peak_bytes == 4 * MIB
    assert meter.operators == 1  # the addition


def test_storage_resize_is_restored_and_the_meter_is_deaf_after_its_window():
    original, kept = torch.UntypedStorage.resize_, []
    meter = measured(lambda *_: kept.append(torch.zeros(10)), None, None, None)
    kept.clear()
    assert meter.peak_bytes == 40
    assert torch.UntypedStorage.resize_ is original


def test_what_nobody_owns_counts_from_the_start():
    teacher, x = torch.ones(MIB), torch.ones(1)

    def step(*_):
        torch.empty(3 * MIB)  # the peak, before the teacher is first used
        teacher.add_(1)

    meter = measured(step, None, None, x)
    assert meter.peak_by_kind["other"] == teacher.nbytes
    assert meter.peak_bytes == 4 * 4 * MIB + 4


def test_state_that_the_optimizer_makes_in_the_window_is_state():
    model, x = nn.Linear(512, 512, bias=False), torch.randn(1, 512)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(*_):
        model(x).sum().backward()
        optimizer.step()

    assert measured(step, model, optimizer, x).peak_by_kind["optimizer_state"] == 2 * model.weight.nbytes


@pytest.mark.parametrize(("fused", "checkpointed"), CONFIGURATIONS)
def test_fake_tensors_count_as_real_ones(fused, checkpointed):
    real = measured(train_step, *made(fused, checkpointed))
    with FakeTensorMode():
        fake = measured(train_step, *made(fused, checkpointed))
    assert fake.peak_by_kind == real.peak_by_kind
    assert fake.operators == real.operators


def test_a_paper_size_model_is_counted_without_its_memory():
    with FakeTensorMode():
        model = Transformer(fused=True, width=16384, heads=64, layers=10)  # 32 billion parameters
        optimizer, batch = torch.optim.AdamW(model.parameters()), tokens(1, 64)
        train_step(model, optimizer, batch)
        meter = measured(train_step, model, optimizer, batch)
    parameters = parameter_bytes(model)
    assert parameters > 120e9
    assert meter.peak_by_kind["optimizer_state"] == 2 * parameters


def test_a_subclass_s_inner_tensors_are_tracked():
    from torch.testing._internal.two_tensor import TwoTensor

    pair = nn.Parameter(TwoTensor(torch.ones(1000), torch.ones(1000)))
    model = nn.ParameterList([pair])
    meter = measured(lambda *_: (pair * 2).sum().backward(), model, None, None)
    assert meter.peak_by_kind["parameters"] == 8000
    assert meter.peak_by_kind["gradients"] == 8000


def test_launches_leave_out_views_and_allocations():
    x = torch.ones(4, 4)
    with TensorBytes() as meter:
        x.t().reshape(2, 8)  # one copy
        x.detach().view(16).unsqueeze(0)
        torch.empty(3)
    assert meter.operators == 1


def test_flop_counter_outside_does_not_disturb():
    alone = measured(train_step, *made())
    with FlopCounter():
        inside = measured(train_step, *made())
    assert (alone.peak_by_kind, alone.operators) == (inside.peak_by_kind, inside.operators)


def test_functional_transforms_run_under_it():
    def loss(w, x):
        return F.relu(x @ w).sum()

    w, x = torch.randn(8), torch.randn(5, 8)
    with TensorBytes() as meter:
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    assert gradients.shape == (5, 8)
    assert meter.peak_bytes > 0
