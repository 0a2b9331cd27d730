"""The laboratory: programs that try to break txlog. It is in the repository and the sdist, not in the wheel.

`explore` runs every interleaving of small scenarios, `simulate` random worlds, `chaos` kills real processes, and
`histories` judges what the clients of all three saw.
"""
