"""A headless Chromium, driven by chromedriver over HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
_REQUEST_SECONDS = 60
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The driver is on this machine, whatever proxy the environment names."""


class Browser:
    """One tab. Paths are those of WebDriver's sessions."""

    def __init__(self, address: str, chromium: str, profile: Path) -> None:
        self._address = f"{address}/session"
        options = {"args": [*_ARGUMENTS, f"--user-data-dir={profile}"], "binary": chromium}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}}
        self._address += f"/{self._post('', {'capabilities': wanted})['sessionId']}"

    def close(self) -> None:
        self._send(urllib.request.Request(self._address, method="DELETE"))

    def open(self, url: str, *, width: int, dark: bool, height: int = 900) -> None:
        """Show a page in a window of this size. The logs begin again."""
        self.logs("browser")
        self.logs("performance")
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self._post("/url", {"url": url})

    def run(self, script: str) -> Any:
        """Return what a function body of JavaScript returns."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def logs(self, kind: str) -> list[dict[str, Any]]:
        """Return the entries of a log since the last call."""
        found: list[dict[str, Any]] = self._post("/se/log", {"type": kind})
        return found

    def requests(self) -> list[str]:
        """Return the URLs that the browser asked for since `open`."""
        messages = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        # The browser's own first page may still be loading.
        return [each["request"]["url"] for each in sent if not each["documentURL"].startswith("chrome:")]

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        with _OPENER.open(f"{self._address}/screenshot", timeout=_REQUEST_SECONDS) as answer:
            return base64.b64decode(json.load(answer)["value"])

    def _command(self, name: str, **params: Any) -> None:
        self._post("/goog/cdp/execute", {"cmd": name, "params": params})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        return self._send(urllib.request.Request(self._address + path, json.dumps(body).encode(), headers))

    def _send(self, request: urllib.request.Request) -> Any:
        with _OPENER.open(request, timeout=_REQUEST_SECONDS) as answer:
            return json.load(answer)["value"]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Yield a browser with an empty profile. Fails with what to install if this machine has none."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("these tests need Chromium and chromedriver: apt-get install chromium chromium-driver")
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(
                found[1] for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line))
            )
            opened = Browser(f"http://127.0.0.1:{port}", chromium, profile)
            try:
                yield opened
            finally:
                opened.close()
        finally:
            process.terminate()
