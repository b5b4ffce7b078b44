"""Has two tiers of memory: a device's, which is small and counted, and a second one that tensors go to and come back
from.

::

    tier.store(tensor) ── out ──▶ the tier's copy ── StoredTensor.fetch() ── in ──▶ StoredTensor.take()
                      one at a time               one at a time

The second tier is the host's memory (:class:`HostTier`) or files (:class:`FileTier`). On a GPU transfers go by a side
stream each way, from and to pinned memory. On a CPU both tiers are one memory, so the tier plays the host: its bytes
are no tensors, and no meter of the step's live tensors sees them. A link of ``link_bytes_per_s`` paces transfers, which
then go on beside the computation, so that predicted times can be checked on any machine. On a CPU without such a link
a copy is done when the call returns, so that what is alive, and counted, is the same in every run.

A tier copies storages, not tensors: views of one storage are stored once, come back once, and share it again. Tensors
without values (torch's fake ones) leave their shapes alone and come back without values: at a paper's own size what a
device would hold is counted on a laptop.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

AWAKE_S = 1e-4  # about how late a sleep ends
ALIGNMENT_BYTES = 64  # as torch's own: some libraries sum in another order at other addresses
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Memory = np.ndarray[Any, np.dtype[np.uint8]]


class Moved(NamedTuple):
    """Describes a transfer that is over: the ``event`` after which a GPU has it, and when it ended on a paced link, by
    ``time.perf_counter``."""

    event: torch.cuda.Event | None = None
    end_s: float = 0.0


class TierFull(MemoryError):
    """Is raised where the tier cannot hold one more tensor; the message says what would fit. What it holds stays
    whole."""


class StoredTensor:
    """Describes a tensor in a tier: its shape, and a share in the copy of its storage."""

    def __init__(self, copy: _Copy, tensor: Tensor) -> None:
        self._copy: _Copy | None = copy
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, copy.device
        self._stride, self._offset = tensor.stride(), tensor.storage_offset()
        copy.shares += 1

    @property
    def nbytes(self) -> int:
        """Returns the bytes of its storage, which other stored views may share; 0 once it is freed."""
        return self._copy.nbytes if self._copy else 0

    @property
    def has_values(self) -> bool:
        """Tells whether the tier keeps more of it than a shape."""
        return self._held.memory is not None

    @property
    def coming(self) -> bool:
        """Tells whether it is on its way back: its place on the device is taken."""
        return self._held.back is not None

    def fetch(self) -> None:
        """Starts the way back; again, it changes nothing."""
        self._held.fetch()

    def take(self, keep: bool = False) -> Tensor:
        """Returns the tensor on its device: its own shape, strides and values to the bit. Waits for the way back.

        Views of one storage share what came back while the one that was taken last lives. The tier lets go of its copy
        with the last of them, unless it is to ``keep`` it: weights come again and again, and change in the tier.
        """
        tensor = self._viewed(self._held.take())
        self._held.there = weakref.ref(tensor)
        if not keep:
            self.free()
        return tensor

    def wait(self) -> None:
        """Makes what the device does from now on come after the copy: only then may the stored tensor be written to."""
        _await(self._held.out, self.device)

    def host(self) -> Tensor:
        """Returns the tier's copy itself, as a CPU tensor: what is written to it is stored, at no traffic, and what
        came back before is old.

        For work on the host, on a thread of its own (:attr:`Tier.worker`), where no meter takes it for the device's.
        Raises RuntimeError where the tier keeps shapes alone.
        """
        if self._held.memory is None:
            raise RuntimeError("a tensor without values has none on the host: leave work on the host out")
        if (copied := self._held.out.result().event) is not None:
            copied.synchronize()
        self._held.back = self._held.there = None
        return self._viewed(torch.from_numpy(self._held.memory))

    def write(self, tensor: Tensor) -> None:
        """Copies a tensor's values (of this shape and type) over the tier's; what came back before is old then."""
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            raise ValueError(f"stored is {self.dtype} {list(self.shape)}, not {tensor.dtype} {list(tensor.shape)}")
        if tensor.stride() != self._stride or tensor.storage_offset() != 0 or self._offset != 0:
            raise ValueError("only a whole tensor in the stored one's layout can take its place")
        self._held.write(tensor)

    def free(self) -> None:
        """Lets go of the tier's copy, which ends with its last share."""
        if self._copy is not None:
            self._copy.release()
            self._copy = None

    @property
    def _held(self) -> _Copy:
        if self._copy is None:
            raise RuntimeError("this tensor was taken or freed: keep it in the tier with take(keep=True)")
        return self._copy

    def _viewed(self, whole: Tensor) -> Tensor:
        return whole.view(self.dtype).as_strided(self.shape, self._stride, self._offset)


@dataclass(eq=False)
class _Copy:
    """Holds one storage's bytes in a tier. ``memory`` is None for tensors without values; ``back`` has what is on its
    way to the device, and ``there`` the view of it that was taken last and may still live."""

    tier: Tier
    device: torch.device
    nbytes: int
    memory: Memory | None
    out: Future[Moved]
    shares: int = 0
    key: tuple[int, int] | None = None
    back: tuple[Tensor, Future[Moved]] | None = None
    there: weakref.ref[Tensor] | None = None

    def fetch(self) -> None:
        if self.back is None and (self.there is None or self.there() is None):
            whole = torch.empty(self.nbytes, dtype=torch.uint8, device=self.device)
            self.back = whole, self.tier._move_in(self, whole.untyped_storage())

    def take(self) -> Tensor:
        living = self.there() if self.there is not None else None
        if living is not None:
            return living.detach().as_strided([self.nbytes // living.itemsize], [1], 0).view(torch.uint8)
        self.fetch()
        assert self.back is not None
        (whole, arrival), self.back = self.back, None
        _await(arrival, self.device)
        return whole

    def write(self, tensor: Tensor) -> None:
        self.back = self.there = None
        self.out = self.tier._move_out(tensor.untyped_storage(), tensor.device, self.nbytes, self.memory)

    def release(self) -> None:
        self.shares -= 1
        if self.shares == 0:
            self.tier._forget(self)


class Tier:
    """Has what host and file tiers share: accounts, and a link with one transfer at a time each way.

    ``capacity_bytes``: None for no limit. ``link_bytes_per_s``: how fast each way of the link is, None for as fast as
    the machine.

    Attributes:
        bytes_out, bytes_in: moved from the device and to it, so far.
        held_bytes, peak_bytes: stored now, and the most that ever was.
    """

    kind = "tier"

    def __init__(self, capacity_bytes: int | None = None, link_bytes_per_s: float | None = None) -> None:
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ValueError(f"capacity_bytes is 0 or more, or None for no limit, not {capacity_bytes}")
        if link_bytes_per_s is not None and not link_bytes_per_s > 0:
            raise ValueError(f"link_bytes_per_s is positive, or None for no limit, not {link_bytes_per_s}")
        self.capacity_bytes, self.link_bytes_per_s = capacity_bytes, link_bytes_per_s
        self.bytes_out = self.bytes_in = self.held_bytes = self.peak_bytes = 0
        self._copies: dict[tuple[int, int], tuple[weakref.ref[torch.UntypedStorage], _Copy]] = {}

    def store(self, tensor: Tensor) -> StoredTensor:
        """Copies a tensor out, with its storage, and returns at once where the link is paced or the tensor on a GPU.

        The tensor may be dropped; it must not be written to before :meth:`StoredTensor.wait` returns. Raises TierFull
        where there is no room, and TypeError for what is no dense tensor.
        """
        if is_traceable_wrapper_subclass(tensor) or tensor.layout is not torch.strided or tensor.is_conj():
            raise TypeError(f"a tier stores dense tensors, not {type(tensor).__name__} of layout {tensor.layout}")
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        key = storage._cdata, 0 if tensor.is_inference() else tensor._version
        known = self._copies.get(key)
        if known is not None and known[0]() is not None:  # a dead storage's place may be another's now
            return StoredTensor(known[1], tensor)
        nbytes = storage.nbytes()
        memory = self._reserved(nbytes, of_values=not isinstance(tensor, FakeTensor))
        copy = _Copy(self, tensor.device, nbytes, memory, self._move_out(storage, tensor.device, nbytes, memory))
        copy.key = key
        self._copies[key] = weakref.ref(storage), copy
        return StoredTensor(copy, tensor)

    def zeros(self, like: StoredTensor, dtype: torch.dtype) -> StoredTensor:
        """Returns zeros in a stored tensor's shape and for its device, which begin in the tier: at no traffic."""
        with torch.utils._python_dispatch._disable_current_modes():
            shape = torch.empty(like.shape, dtype=dtype, device="meta")
        nbytes = shape.numel() * dtype.itemsize
        memory = self._reserved(nbytes, like.has_values)
        if memory is not None:
            memory[:] = 0
        return StoredTensor(_Copy(self, like.device, nbytes, memory, _done()), shape)

    @cached_property
    def worker(self) -> ThreadPoolExecutor:
        """Returns a thread for work on the host. Meters of a step are those of the thread that makes it."""
        return ThreadPoolExecutor(1, f"{self.kind}-worker")

    # room -----------------------------------------------------------------------------------------------------------

    def check_room(self, nbytes: int) -> None:
        """Raises TierFull where ``nbytes`` more are more than the tier may hold."""
        if self.capacity_bytes is not None and self.held_bytes + nbytes > self.capacity_bytes:
            raise TierFull(
                f"the {self.kind} of {self.capacity_bytes:,} bytes holds {self.held_bytes:,}, and {nbytes:,} more do "
                f"not fit: give it {self.held_bytes + nbytes:,} or more, or store less"
            )

    def _reserved(self, nbytes: int, of_values: bool) -> Memory | None:
        """Returns memory of ``nbytes``, aligned; None, but accounted for, where there are no values to keep."""
        self.check_room(nbytes)
        memory = self._allocated(max(1, nbytes))[:nbytes] if of_values else None
        self.held_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return memory

    def _allocated(self, nbytes: int) -> Memory:
        raise NotImplementedError

    def _forget(self, copy: _Copy) -> None:
        self.held_bytes -= copy.nbytes
        if copy.key is not None and self._copies.get(copy.key, (None, None))[1] is copy:
            del self._copies[copy.key]

    # transfers ------------------------------------------------------------------------------------------------------

    def _move_out(
        self, storage: torch.UntypedStorage, device: torch.device, nbytes: int, memory: Memory | None
    ) -> Future[Moved]:
        self.bytes_out += nbytes
        if memory is None:
            return _done()
        return self._out.move(lambda: _copied(memory, storage, nbytes, device, out=True), nbytes, device)

    def _move_in(self, copy: _Copy, storage: torch.UntypedStorage) -> Future[Moved]:
        self.bytes_in += copy.nbytes
        memory, out = copy.memory, copy.out
        if memory is None:
            return _done()

        def move() -> None:
            _copied(memory, storage, copy.nbytes, copy.device, out=False)

        return self._in.move(move, copy.nbytes, copy.device, after=out)

    @cached_property
    def _out(self) -> _Lane:
        return _Lane(f"{self.kind}-out", self.link_bytes_per_s)

    @cached_property
    def _in(self) -> _Lane:
        return _Lane(f"{self.kind}-in", self.link_bytes_per_s)


class HostTier(Tier):
    """Keeps tensors in the host's memory; pinned, where a GPU's tensors go to it."""

    kind = "host tier"

    def _allocated(self, nbytes: int) -> Memory:
        if torch.cuda.is_initialized():
            with torch.utils._python_dispatch._disable_current_modes():
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        larger = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
        start = -larger.ctypes.data % ALIGNMENT_BYTES
        return larger[start : start + nbytes]


class FileTier(Tier):
    """Keeps tensors in files in ``folder``, mapped into memory: one for each storage, of which nothing is left however
    the run ends.

    Raises TierFull where the disk is full, before anything is written.
    """

    kind = "file tier"

    def __init__(
        self, folder: Path | str, capacity_bytes: int | None = None, link_bytes_per_s: float | None = None
    ) -> None:
        super().__init__(capacity_bytes, link_bytes_per_s)
        self.folder = Path(folder).expanduser()
        self.folder.mkdir(parents=True, exist_ok=True)

    def _allocated(self, nbytes: int) -> Memory:
        with tempfile.TemporaryFile(dir=self.folder) as file:  # without a name: it ends with its mapping
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)  # or a full disk would be a signal, not an error
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                space = os.statvfs(self.folder)
                raise TierFull(
                    f"the file tier holds {self.held_bytes:,} bytes and needs {nbytes:,} more, but {self.folder} has "
                    f"{space.f_bavail * space.f_frsize:,} free: make room, or choose another folder"
                ) from None
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)


class _Lane:
    """Describes one way of the link: transfers one after the other, each for as long as its bytes take at
    ``bytes_per_s``.

    A transfer begins when it is asked for and the one before it has ended, however late this machine's thread comes to
    it: a paced link falls behind its rate only where copying itself is slower. On a GPU, and where the link is paced,
    transfers are a thread's own; else they are done at once.
    """

    def __init__(self, name: str, bytes_per_s: float | None) -> None:
        self.name, self.bytes_per_s = name, bytes_per_s
        self.free_s = 0.0  # from when on it carries the next
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    @cached_property
    def thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, self.name)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """Returns the side stream of this device: another's would order nothing there."""
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)
        return self.streams[device]

    def move(
        self, transfer: Callable[[], None], nbytes: int, device: torch.device, after: Future[Moved] | None = None
    ) -> Future[Moved]:
        """Returns a future that is done when the transfer is, which begins ``after`` another."""
        on_gpu = device.type == "cuda"
        if not on_gpu and self.bytes_per_s is None:
            transfer()
            return _done()
        ready = torch.cuda.current_stream(device).record_event() if on_gpu else None
        moved: Future[Moved] = Future()
        asked_s = time.perf_counter()

        def work() -> None:
            try:
                begin_s = max(asked_s, self.free_s, after.result().end_s if after is not None else 0.0)
                event = self._copy(transfer, device, after, ready)
            except BaseException as error:  # the one who waits raises it
                return moved.set_exception(error)
            self.free_s = begin_s + nbytes / self.bytes_per_s if self.bytes_per_s is not None else 0.0
            moved.set_result(Moved(event, self.free_s))
            _sleep_until(self.free_s)  # as long as what leaves is on the device

        self.thread.submit(work)
        return moved

    def _copy(
        self,
        transfer: Callable[[], None],
        device: torch.device,
        after: Future[Moved] | None,
        ready: torch.cuda.Event | None,
    ) -> torch.cuda.Event | None:
        """Copies, on a GPU on the side stream, as soon as what is copied is ``ready``."""
        if ready is None:
            transfer()
            return None
        stream = self.stream(device)
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            if after is not None:
                _await(after, device)
            transfer()
            return stream.record_event()


def _copied(memory: Memory, storage: torch.UntypedStorage, nbytes: int, device: torch.device, out: bool) -> None:
    """Copies a storage's bytes to the tier's memory (``out``) or back; on a CPU beside torch's dispatcher."""
    if device.type == "cpu":
        there, here = memory.ctypes.data, storage.data_ptr()
        ctypes.memmove(*((there, here) if out else (here, there)), nbytes)
        return
    on_device = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    on_host = torch.from_numpy(memory)
    target, source = (on_host, on_device) if out else (on_device, on_host)
    target.copy_(source, non_blocking=True)
    on_device.record_stream(torch.cuda.current_stream(device))


def _await(transfer: Future[Moved], device: torch.device) -> None:
    """Waits for a transfer: on a GPU its current stream does, not the host, but for what a paced link takes."""
    moved = transfer.result()
    _sleep_until(moved.end_s, AWAKE_S)
    if moved.event is not None:
        torch.cuda.current_stream(device).wait_event(moved.event)


def _sleep_until(moment_s: float, awake_s: float = 0.0) -> None:
    """Sleeps until the moment, the last ``awake_s`` of it awake, since a sleep ends late."""
    time.sleep(max(0.0, moment_s - awake_s - time.perf_counter()))
    while awake_s and time.perf_counter() < moment_s:
        pass


def _done() -> Future[Moved]:
    done: Future[Moved] = Future()
    done.set_result(Moved())
    return done
