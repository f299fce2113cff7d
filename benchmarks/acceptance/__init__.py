"""The parts of ``gpu_acceptance.py``: tasks, the journal that makes it resumable, the verdicts."""
