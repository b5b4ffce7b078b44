"""Stacks: do techniques still help together?"""
