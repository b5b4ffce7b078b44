"""Supports Triton kernels: what they share, and how one is gated, checked and timed.

What belongs here knows no technique and no training run: helpers that mean the same under the interpreter and in
machine code (:mod:`portable`), one launch over many tensors (:mod:`multi_tensor`), the parts of optimizers' kernels and
the optimizer that launches them (:mod:`optimizer_parts`, :mod:`optimizer`), what a kernel's file declares
(:mod:`manifest`), the gates on its machine code (:mod:`gates`), and its check and timing (:mod:`bench`). A technique's
own kernel stands beside it, in ``kernel.py``.

It may import torch, Triton and ``suite.record``. It hands on :class:`optimizer.GroupedOptimizer` and the device
functions to techniques, and machine code and examinations to the report in ``suite.guard``.
"""
