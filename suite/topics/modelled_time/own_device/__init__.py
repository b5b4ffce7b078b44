"""Measures what this device takes: single operators at several sizes, and whole steps of the baselines.

Constants are not made here (:mod:`suite.topics.modelled_time.device_model`).
"""
