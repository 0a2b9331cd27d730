"""Is there an order in which the transactions could have happened, consistent with what each of them read?

Nodes are transactions, sends and polls; an edge means "before". wr: it read a row that the other wrote. ww: its row is
directly after the other's. A cycle of wr edges is never allowed, with or without the order of a process or of real
time. A cycle that needs ww edges is allowed, because transactions do not exclude each other from a partition, in Kafka
either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.histories.anomaly import Anomaly, anomaly
from lab.histories.events import Event, Poll
from lab.histories.facts import NEVER, Call, Facts, Transaction
from txlog.core.names import TopicPartition

Edges = dict[int, set[int]]


@dataclass(slots=True, eq=False)
class _Node:
    name: str
    process: str
    began: float
    ended: float
    events: tuple[Event, ...]
    polls: list[Call[Poll]] = field(default_factory=list)


def check_cycles(facts: Facts) -> Iterator[Anomaly]:
    """G1c, G1c-process, G1c-realtime; and the notes G0, G0-process, G0-realtime, int-send-skip."""
    nodes, of_txn = _nodes(facts)
    wr = _read_edges(facts, nodes, of_txn)
    process, realtime = _process_edges(nodes), _order_edges(list(enumerate(nodes)))
    yield from _cycles("G1c", nodes, wr, process, realtime)
    ww, skips = _write_edges(facts, of_txn)
    yield from _cycles("G0", nodes, ww, process, realtime)
    yield from skips


def _nodes(facts: Facts) -> tuple[list[_Node], dict[Transaction, int]]:
    nodes: list[_Node] = []
    of_txn: dict[Transaction, int] = {}
    for txn in facts.all_transactions:
        calls = list(txn.calls)
        if not calls or (not txn.must and not txn.polls):
            continue
        of_txn[txn] = len(nodes)
        nodes.append(_Node(txn.name, calls[0].process, txn.began, txn.ended, txn.events, txn.polls))
    nodes.extend(
        _Node(f"a poll of {poll.process}", poll.process, poll.began, poll.ended, poll.events, [poll])
        for poll in facts.polls
        if poll.status == "ok" and not poll.what.txn
    )
    return nodes, of_txn


def _read_edges(facts: Facts, nodes: list[_Node], of_txn: dict[Transaction, int]) -> Edges:
    edges: Edges = defaultdict(set)
    for reader, node in enumerate(nodes):
        for poll in node.polls:
            if poll.status != "ok" or poll.what.isolation != "read_committed":
                continue
            for row in poll.what.rows:
                written = facts.written.get(row.value)
                writer = of_txn.get(written.txn) if written is not None else None
                if writer is not None and writer != reader:
                    edges[writer].add(reader)
    return edges


def _write_edges(facts: Facts, of_txn: dict[Transaction, int]) -> tuple[Edges, list[Anomaly]]:
    edges: Edges = defaultdict(set)
    rows: dict[TopicPartition, list[tuple[int, int, int]]] = defaultdict(list)
    for written in facts.written.values():
        offsets = facts.offsets_of(written)
        if offsets and written.must and written.txn in of_txn:
            rows[written.tp].append((offsets[0], written.value, of_txn[written.txn]))
    skips: dict[Transaction, Anomaly] = {}
    for tp, found in rows.items():
        found.sort()
        last: dict[int, int] = {}
        for at, (offset, value, node) in enumerate(found):
            before = found[at - 1][2] if at else node
            if before != node:
                edges[before].add(node)
            txn = facts.written[value].txn
            if node in last and last[node] != at - 1 and txn not in skips:
                skips[txn] = anomaly(
                    "int-send-skip", f"{tp} offset {offset}: others' rows stand between those of {txn.name}", txn.events
                )
            last[node] = at
    return edges, list(skips.values())


def _process_edges(nodes: list[_Node]) -> Edges:
    by_process: dict[str, list[tuple[int, _Node]]] = defaultdict(list)
    for number, node in enumerate(nodes):
        by_process[node.process].append((number, node))
    return _union(*(_order_edges(group) for group in by_process.values()))


def _order_edges(nodes: list[tuple[int, _Node]]) -> Edges:
    """Return the edges "ended before the other began", without edges that follow from others."""
    moments = [(node.began, 0, number, node) for number, node in nodes]
    moments += [(node.ended, 1, number, node) for number, node in nodes if node.ended < NEVER]
    edges: Edges = defaultdict(set)
    front: dict[int, _Node] = {}
    for _, ends, number, node in sorted(moments, key=lambda moment: moment[:3]):
        if not ends:
            for before, other in front.items():
                if other.ended < node.began:
                    edges[before].add(number)
        else:
            # A transaction that begins from here on is after this one, and so after all that ended before this one
            # began.
            front = {n: other for n, other in front.items() if not other.ended < node.began}
            front[number] = node
    return edges


def _cycles(name: str, nodes: list[_Node], edges: Edges, process: Edges, realtime: Edges) -> Iterator[Anomaly]:
    seen: set[frozenset[int]] = set()
    for suffix, more in (("", None), ("-process", process), ("-realtime", realtime)):
        for circle in _components(edges if more is None else _union(edges, more), len(nodes)):
            if any(circle >= smaller for smaller in seen):
                continue
            seen.add(circle)
            shown = [nodes[number] for number in sorted(circle)[:6]]
            yield anomaly(
                name + suffix,
                f"{len(circle)} in a cycle: {'; '.join(node.name[:80] for node in shown)}",
                *(node.events for node in shown),
            )


def _union(*many: Edges) -> Edges:
    union: Edges = defaultdict(set)
    for edges in many:
        for source, targets in edges.items():
            union[source] |= targets
    return union


def _components(edges: Edges, count: int) -> Iterator[frozenset[int]]:
    """Strongly connected components of more than one node: Tarjan's, without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(count):
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(edges.get(target, ())))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = _pop_until(node, stack, on_stack)
                    if len(component) > 1:
                        yield frozenset(component)


def _pop_until(node: int, stack: list[int], on_stack: set[int]) -> list[int]:
    component = []
    while True:
        top = stack.pop()
        on_stack.discard(top)
        component.append(top)
        if top == node:
            return component
