"""What Triton kernels share: interpreter-safe helpers, launch tables, offline gates on the machine code."""
