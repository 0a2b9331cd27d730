"""Make the pictures of docs/inspect.md: the store of the page, in a headless Chromium. `make pictures` runs it."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image  # matplotlib needs it, too

from tests.page.browser import browser
from tests.page.shop import ROOT, make_shop

MAX_BYTES = 150_000
PICTURES: dict[str, dict[str, Any]] = {
    "inspect-wide.png": {"width": 1280, "height": 1630, "dark": False},
    "inspect-narrow.png": {"width": 400, "height": 1100, "dark": True},
}


def small(picture: bytes) -> bytes:
    """Return a picture of few colours."""
    target = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(target, "png", optimize=True)
    return target.getvalue()


def main() -> None:
    """Write the pictures into docs."""
    with tempfile.TemporaryDirectory() as folder:
        make_shop(Path(folder))
        page = Path(folder, "my-shop.html")
        # The name of the temporary folder says nothing.
        page.write_text(page.read_text(encoding="utf-8").replace(folder, "/data"), encoding="utf-8")
        with browser(Path(folder, "profile")) as shown:
            for name, window in PICTURES.items():
                shown.open(page.as_uri(), **window)
                data = small(shown.picture())
                assert len(data) < MAX_BYTES, f"{name} has {len(data):,} bytes, {MAX_BYTES:,} are allowed"
                (ROOT / "docs" / name).write_bytes(data)


if __name__ == "__main__":
    main()
