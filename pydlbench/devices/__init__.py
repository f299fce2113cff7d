"""WHERE kernels run: facts of the machine, theoretical peaks, and what probes found.

Nothing here times anything: ``pydlbench.runner`` runs the probes and hands their readings in.
"""
