"""The parts of ``gpu_kit.py``: wheels for a GPU machine, the steps there, and their summary."""
