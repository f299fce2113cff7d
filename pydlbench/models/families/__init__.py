"""Whole models, one module per family.

Each module registers its models with :func:`~pydlbench.models.family`; nothing else names it.
"""
