"""Random worlds: many clients of one log, faults and jumping clocks, from one seed; their answers are judged.

`python -m lab.simulate --seeds 1000` runs them; `world` describes one world.
"""
