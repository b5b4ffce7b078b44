"""Set before any kernel module is imported: Triton decides at decoration whether a kernel is interpreted."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # test workers share the cores; contenders set their own
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads stall a busy machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
