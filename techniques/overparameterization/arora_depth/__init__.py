"""Implements implicit acceleration by overparameterised linear layers."""
