"""Parts of a step, each run alone in the framework that runs the step; for the cross-check.

A worker imports this when it is asked for parts; see :mod:`pydlbench.endtoend.pieces.serving`.
"""
