"""How far does a store scale?

Many writers against a simulated store with a network's latency; `python -m lab.scale`.
"""
