"""Random worlds: many clients of one log, bad weather and jumping clocks, from one seed; what they were told is judged.

`python -m lab.simulate --seeds 1000` runs them; see `world` for what happens in one.
"""
