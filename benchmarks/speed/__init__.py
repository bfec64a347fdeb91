"""How long predictions take, in plain forward passes: the parts of `benchmarks/run.py`."""
