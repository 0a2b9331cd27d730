"""How do we know that the explanation pages are right? Programs that run what the pages explain.

`python -m lab.explain` writes the drawings and tables of the pages again. `tests/test_explained.py` compares them.
"""
