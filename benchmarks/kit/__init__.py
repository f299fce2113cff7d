"""The parts of ``gpu_kit.py``: what is carried to a GPU machine, the steps there, their account."""
