"""Whole models, one file a family: each says itself which models it has.

Every module in this folder is a family. It registers its models with
:func:`~pydlbench.models.family`, and nothing else has to name it.
"""
