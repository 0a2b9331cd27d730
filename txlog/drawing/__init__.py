"""How does a page look? Drawings, tables and sections, made from plain values.

Nothing here knows a store, a file or the network. The drawings need matplotlib (the extra `page`); everything else does
not.
"""
