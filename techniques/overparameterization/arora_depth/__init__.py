"""Implicit acceleration by overparameterised linear layers."""
