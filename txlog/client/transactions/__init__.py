"""What has a transactional.id? Its record and the calls about it (`coordinator`), and files for `txlog.client.staged`.

`staged_files` makes the files of a transaction that a job or an engine fills, and loads pyarrow. A producer's own
transactions are part of `txlog.client.producer`.
"""
