"""The ladder: a step's rungs from the hardware's limit to the step itself, and what lies between.

No rung is computed from another. A forecast is made from stored rows, before its step runs.
"""
