"""The devices that kernels run on: facts, theoretical peaks, and results of probes.

Nothing is timed here: ``pydlbench.runner`` runs the probes and passes their readings in.
"""
