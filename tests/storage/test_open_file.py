"""A file where a store should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from txlog.errors import NotAStoreError
from txlog.storage.open import open_object_store


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_file_is_no_store(tmp_path: Path, form: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(NotAStoreError, match=r"notes\.txt is a file, and a store is a folder"):
        open_object_store(form.format(file))
    assert file.read_text() == "mine"
