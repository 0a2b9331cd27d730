"""How is a store opened or created, and is it still the same store?

`txlog.json` is created once and never changed (PROTOCOL.md, "Store descriptor", W3).
"""

from __future__ import annotations

import msgspec

from txlog.core import envelope, names
from txlog.core.ages import ClockReading
from txlog.core.effects import Get, List, NewId, Now, Program, PutOutcome, ReadClocks
from txlog.core.features import STORE_FEATURES, check_features
from txlog.core.names import STORE_DESCRIPTOR
from txlog.core.records import StoreConstants, StoreDescriptor
from txlog.errors import NotAStoreError, StoreChangedError
from txlog.protocol.context import PROOF_AGE_MS, Context
from txlog.protocol.put import create
from txlog.text import count_text


def read_store(where: str = "this location") -> Program[StoreDescriptor | None]:
    """Return the store's descriptor; None if the location is empty or missing (`__probe/` aside).

    A store may be made in such a location (W3). `where` names the location in messages. Raises NotAStoreError if it
    holds anything else. Raises UnsupportedStoreError if the store needs unknown features, CorruptRecordError if the
    descriptor is damaged.
    """
    descriptor = yield from _get_descriptor(where)
    if descriptor is not None:
        return descriptor
    listed = yield List("")
    others = [name for name in listed if name != names.PROBE_FOLDER]
    if not others:
        return None
    # Another process may have made the store between the GET and the LIST.
    descriptor = yield from _get_descriptor(where)
    if descriptor is None:
        more = f" and {count_text(len(others) - 1, 'other')}" if len(others) > 1 else ""
        if any(names.parse_topic_metadata_name(name) is not None for name in others):
            raise NotAStoreError(f"{where} is a topic's folder inside of a store. hint: open the folder above it")
        raise NotAStoreError(
            f"{where} holds {others[0]!r}{more}, and no {STORE_DESCRIPTOR}: it is not a "
            "txlog store; name an empty location, or the root of a store"
        )
    return descriptor


def check_store(ctx: Context) -> Program[None]:
    """Raise StoreChangedError unless the location still holds the store that the process opened (W47).

    One GET, or none if it was seen less than PROOF_AGE_MS ago.
    """
    known = ctx.store
    if known is None:
        return
    now: ClockReading = yield ReadClocks()
    if known.checked_at is not None and now.ms_since(known.checked_at) < PROOF_AGE_MS:
        return
    found = yield from _get_descriptor(known.where)
    if found is None or found.store_id != known.store_id:
        there = (
            f"another store lies here now (store_id {found.store_id[:8]}…)" if found else "there is no store any more"
        )
        raise StoreChangedError(
            f"{known.where}: {there}. This process has opened store_id {known.store_id[:8]}…, which was "
            "deleted or replaced since. "
            "hint: close what was made from it, and open the store again"
        )
    known.note(now)


def create_store(
    constants: StoreConstants, where: str = "this location", features: tuple[str, ...] = STORE_FEATURES
) -> Program[StoreDescriptor]:
    """Return the store's descriptor.

    If the store does not exist yet, make it with `constants`; otherwise use it as it is. `features` are those of a new
    store; tests pass fewer to make what an older txlog has made. Raises as `read_store`, and OutcomeUnknownError if it
    stays unknown whether the descriptor was created.
    """
    found = yield from read_store(where)
    if found is not None:
        return found
    ctx = Context(constants=constants)
    store_id = yield NewId()
    created_at = yield Now()
    descriptor = StoreDescriptor(features=features, store_id=store_id, created_at=created_at, constants=constants)
    data = envelope.encode(descriptor)

    def look(outcome: PutOutcome) -> Program[StoreDescriptor | None]:
        # The descriptor is create-only, so the one read now is the store's, whichever process made it.
        return descriptor if outcome is PutOutcome.WRITTEN else (yield from _get_descriptor(where))

    return (yield from create(ctx, STORE_DESCRIPTOR, data, look, what=f"the descriptor of {where}"))


def _get_descriptor(where: str) -> Program[StoreDescriptor | None]:
    data = yield Get(STORE_DESCRIPTOR)
    if data is None:
        return None
    # Check features first (W3, R1): a store of a later txlog may hold values that this version's types refuse.
    needs, _ = envelope.decode(data, _Descriptor, STORE_DESCRIPTOR)
    check_features(needs.features, where)
    descriptor, _ = envelope.decode(data, StoreDescriptor, STORE_DESCRIPTOR)
    return descriptor


class _Descriptor(msgspec.Struct, frozen=True):
    features: tuple[str, ...]
