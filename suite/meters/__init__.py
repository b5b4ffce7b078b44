"""Has the meters: what one training step costs in FLOPs, memory, time, communication and energy.

A meter belongs here when it takes callables, models and optimizers and knows no technique, baseline or run. It may
import torch and :mod:`suite.record`, whose :class:`~suite.record.schema.Counters` it fills. It hands on numbers: the
exact counters (FLOPs, tensor bytes, saved activations, state bytes, communication, operators) are equal for equal code;
clock, process memory and energy are physical readings, and say so when there is none.
"""
