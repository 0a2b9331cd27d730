"""What do the columns and rows of a topic mean to those who write? Names and changes of columns, and a row's place.

Producers, staged transactions, stores and engines use it. It loads pyarrow.
"""
