"""Does the shipped protocol hold its invariants in every interleaving, with lost replies, late requests and
maintenance?

An exhaustive explorer of small scenarios. It drives the generators of `txlog.protocol` themselves, not models of them.
It owns time, identity and the network. Two suspended generators with equal frames are the same state.

    python -m lab.explore                  # every scenario, whole
    python -m lab.explore --quick          # small sizes of each, and the mutants: two minutes
    python -m lab.explore --mutants        # break one rule after another: each must be caught

Abstractions, and why they lose nothing:

* A crash is a process that is never scheduled again. So every reachable state also represents the crash of any of its
  processes there, before its next request, or with that request in flight. Every state is checked. From every reachable
  store a single successor must be able to finish (invariant 11).
* Time stands still, except for the ticks of a scenario. Sleeping takes no time: a protocol whose safety needed time to
  pass during a back-off would be wrong. While a tick may still come, each reading of a clock is a separate step.
* Ids are made from the actor and the call that drew them: as unique as random ones, and equal in equal states.
* A request that no other process can influence or see takes no turn, because it commutes with every step of the others.
  Examples: reading an object that exists and is never deleted, a conditional PUT onto one, writing a file whose name no
  other process knows yet. (The explorer does not lose the reply to a write that failed anyway, because the same look at
  the slot settles UNKNOWN and CONFLICT.)
* Rows are words (JSON), not Arrow and Parquet. Listings omit the names of row files, except where vacuum lists them.
  There, objects also have the time at which they were written.
* The requests of a vacuum's round are made one after another, which is one of their possible orders. The requests of
  all others are made in every order.
"""
