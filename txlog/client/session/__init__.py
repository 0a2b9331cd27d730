"""What all clients of a store are made of: the store's part that they share, and one client's views, retries and guard.

`runtime` is shared by all clients of a store, and `session` is one client's part: with it, a client or a job calls the
protocol. `settings` and `retry` are what these two take. `call_guard` and `repr_html` serve every client.
"""
