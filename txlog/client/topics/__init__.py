"""What do the columns and rows of a topic mean to those who write? Names of columns (`column_names`), changes of these
(`column_changes`), and a row's place (`row_writer`).

Producers, staged transactions, stores and engines use all three. They load pyarrow.
"""
