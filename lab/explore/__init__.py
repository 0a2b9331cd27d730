"""Does the shipped protocol hold its invariants in every interleaving, with lost replies, late requests and clean-ups?

An exhaustive explorer of small scenarios. It drives the generators of `txlog.protocol` themselves, not models of them:
it owns time, identity and the network, and two suspended generators with equal frames are the same state.

    python -m lab.explore                  # every scenario, whole
    python -m lab.explore --quick          # small sizes of each, and the mutants: two minutes
    python -m lab.explore --mutants        # break one rule after another: each must be caught

What is abstracted, and why nothing is lost by it:

* A crash is a process that is never scheduled again. So every reachable state also stands for the crash of any of its
  processes there, before its next request, or with that request still on its way; what is then left is judged in every
  state, and from every store that is reachable a lone successor must be able to finish (invariant 11).
* Time stands still, but for the ticks of a scenario. Sleeping takes none: a protocol whose safety needed time to pass
  while it backs off would be wrong. While a tick may still come, each look at a clock is a step of its own.
* Ids are made from who drew them, and in which call: as unique as random ones, and equal in equal states.
* What no other process can influence or see takes no turn: reading an object that exists and that nobody deletes, a
  conditional PUT onto one, writing a file whose name nobody knows yet. These commute with every step of the others. (The
  lost reply to a write that had lost anyway is left out: UNKNOWN and CONFLICT are settled by the same look at the slot.)
* Rows are words (JSON), not Arrow and Parquet. Listings leave out the names of files of rows, but where vacuum looks at
  them; there objects also have the time at which they were written.
* The requests of a vacuum's round are made one after the other, which is one of the orders in which they may be; everybody
  else's are made in every order.
"""
