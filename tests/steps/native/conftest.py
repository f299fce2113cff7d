import importlib.util

# test_chain.py imports the native module at its top.
collect_ignore = [] if importlib.util.find_spec("pydlbench._cpu") else ["test_chain.py"]
