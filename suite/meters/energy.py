"""Reads the energy of a window of work from hardware counters, or the exact reason why there is none.

NVML's total-energy counter (Volta and newer; the whole board) or RAPL's (Intel, AMD; the whole package, plus memory
where it has that domain), read through zeus. Never modelled: a power model times a time is a time. Never 0 for unknown.

A counter that ticks every T seconds misplaces up to one tick at each end of a window of W seconds, so at steady power
the relative error is at most 2 T / W. NVML's counter ticks every 20 to 100 ms: a window needs 20 s to be right within
1 %. RAPL's ticks every millisecond. Boards and packages are shared, and a counter includes the neighbours' work.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

NVML_UPDATE_PERIOD_S = 0.1
RAPL_UPDATE_PERIOD_S = 0.001
POWERCAP = Path("/sys/class/powercap")
WINDOW = "leantrain"


@dataclass(frozen=True)
class EnergyReading:
    """Holds one window's energy.

    Attributes:
        joules: energy, gross of idle power; None if unavailable.
        kind: "measured_counter" or "unavailable".
        method: "nvml_total_energy", "rapl" or "none".
        scope: what the counter covers: "gpu_board", "cpu_package", "cpu_package_dram" or "none".
        window_s: length of the window; None if no window was measured.
        relative_error_bound: bound on the error that the ticks cause, as a fraction of ``joules``; None if unavailable.
        reason: why it is unavailable; empty if it is not.
    """

    joules: float | None
    kind: Literal["measured_counter", "unavailable"]
    method: str
    scope: str
    window_s: float | None
    relative_error_bound: float | None
    reason: str


def unavailable(reason: str, window_s: float | None = None) -> EnergyReading:
    """Returns a reading that says why there is none."""
    return EnergyReading(None, "unavailable", "none", "none", window_s, None, reason)


class EnergyMeter:
    """Reads the counter of ``device``: the GPU's board, or on a CPU its packages.

    ``monitor`` is a zeus monitor (anything with ``begin_window(key)`` and ``end_window(key)``); by default one is made.

    >>> meter = EnergyMeter("cpu")
    >>> with meter:                  # doctest: +SKIP
    ...     train_for_20_seconds()
    >>> meter.reading                # doctest: +SKIP
    """

    def __init__(self, device: torch.device | str = "cpu", monitor: Any = None) -> None:
        self._device = torch.device(device)
        self._why_not = ""
        self._monitor = monitor
        if monitor is None:
            self._monitor, self._why_not = _zeus_monitor(self._device)
        self.reading = unavailable(self._why_not or "no window was measured yet")

    @property
    def available(self) -> bool:
        """Tells whether there is a counter to read."""
        return self._monitor is not None

    def __enter__(self) -> Self:
        if self._monitor is not None:
            self._monitor.begin_window(WINDOW)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._monitor is not None:
            self.reading = self._read(self._monitor.end_window(WINDOW))

    def _read(self, measured: Any) -> EnergyReading:
        """Returns a zeus ``Measurement`` as a reading."""
        window_s = float(measured.time)
        if self._device.type == "cuda":
            method, scope, period_s = "nvml_total_energy", "gpu_board", NVML_UPDATE_PERIOD_S
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            if index not in measured.gpu_energy:
                return unavailable(f"the monitor has no energy for GPU {index}", window_s)
            joules = float(measured.gpu_energy[index])
        else:
            if not measured.cpu_energy:
                return unavailable("the monitor has no CPU energy: RAPL is absent or may not be read", window_s)
            dram = measured.dram_energy or {}
            method, scope, period_s = "rapl", "cpu_package_dram" if dram else "cpu_package", RAPL_UPDATE_PERIOD_S
            joules = float(sum(measured.cpu_energy.values()) + sum(dram.values()))
        if joules <= 0 or 2 * period_s >= window_s:
            return unavailable(
                f"the window of {window_s:.3g} s is too short for a counter that ticks every {period_s:g} s: "
                "measure 20 s or more",
                window_s,
            )
        return EnergyReading(joules, "measured_counter", method, scope, window_s, 2 * period_s / window_s, "")


def _zeus_monitor(device: torch.device) -> tuple[Any, str]:
    """Returns a zeus monitor for ``device`` alone, or None and why there is none."""
    if device.type == "cpu" and not list(POWERCAP.glob("*rapl*")):
        return None, "no RAPL energy counters on this machine, as usual in a virtual one"
    try:
        importlib.import_module("zeus")
    except ImportError:
        return None, "zeus is not installed: pip install 'leantrain[energy]'"
    # Asked first, since the monitor itself swallows these errors and their reasons.
    try:
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            if not importlib.import_module("zeus.device").get_gpus().supports_get_total_energy_consumption(index):
                return None, f"GPU {index} has no total-energy counter: it is older than Volta"
            chosen: dict[str, list[int] | None] = {"gpu_indices": [index], "cpu_indices": []}
        elif device.type == "cpu":
            importlib.import_module("zeus.device").get_cpus()
            chosen = {"gpu_indices": [], "cpu_indices": None}
        else:
            return None, f"no energy counter is known for {device.type} devices"
        return importlib.import_module("zeus.monitor").ZeusMonitor(**chosen), ""
    except Exception as error:
        # zeus, NVML and RAPL each raise their own; whichever it is, energy is unknown and training goes on.
        return None, f"{type(error).__name__}: {error}"
