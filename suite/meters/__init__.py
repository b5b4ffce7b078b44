"""Meters: what one training step costs in FLOPs, memory, time, communication and energy.

Each meter takes callables, models and optimizers; none knows a technique or a model. The exact
counters (FLOPs, tensor bytes, saved activations, state bytes, operators) are deterministic; clock, process memory, wire
bytes and energy are physical readings, and say when there is none.
"""
