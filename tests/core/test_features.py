"""A store that needs an unknown feature is refused, and the error names the feature."""

from __future__ import annotations

import pytest

from txlog.core.features import KNOWN_FEATURES, STORE_FEATURES, check_features
from txlog.errors import UnsupportedStoreError


def test_own_stores_are_known() -> None:
    check_features(STORE_FEATURES, "x")
    check_features((), "x")
    assert set(STORE_FEATURES) <= KNOWN_FEATURES
    assert list(STORE_FEATURES) == sorted(STORE_FEATURES)


def test_unknown_ones_are_named() -> None:
    with pytest.raises(
        UnsupportedStoreError,
        match="s3://b/l: the store needs a-later, b-later, and this txlog knows deletion-records, group-members, "
        "inline-zstd, publication, published-latest, schema-evolution",
    ):
        check_features(("b-later", "txn-v2", "a-later"), "s3://b/l")
