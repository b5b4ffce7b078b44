"""Set before any kernel module is imported: Triton decides at decoration whether a kernel is interpreted."""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # test workers share the cores; contenders set their own
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads stall a busy machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# No test fails for being slow: workers share the cores, perhaps with others.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
