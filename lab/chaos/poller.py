"""Which rows do other engines see in the published tables while a storm runs?

`python -m lab.chaos.poller` runs in the engines' own environment, without txlog. It reads each table over and over,
with each engine in turn: the newest version, and an old one, as a slow query does. It appends a line of JSON for each
read. The proof judges the rows after the storm. SIGTERM ends it after one more round.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lab.engines import READERS

ENVIRONMENT = "TXLOG_CHAOS_POLLER"
PAUSE_S = 0.2


def main() -> None:
    given = json.loads(os.environ[ENVIRONMENT])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    known: set[str] = set()
    with Path(given["file"]).open("a", encoding="utf-8") as file:
        while os.getppid() == parent:
            is_last = bool(stopping)
            for topic in given["topics"]:
                for engine in READERS:
                    if not _exists(engine, Path(given["store"], topic)):
                        continue
                    folder = Path(given["store"], topic)
                    for version in (None, _old_version(folder, given["old_ms"])):
                        if version is None or not is_last:
                            said = _read(engine, folder, version, known)
                            file.write(json.dumps({**said, "last": is_last}) + "\n")
                            file.flush()
            if is_last:
                return
            time.sleep(PAUSE_S)
    sys.exit("the storm has died")


def _exists(engine: str, topic: Path) -> bool:
    first = "_delta_log/00000000000000000000.json" if "delta" in engine else "metadata/v1.metadata.json"
    return (topic / first).exists()


def _old_version(topic: Path, old_ms: int) -> int:
    """Return the oldest version that was replaced no longer than that ago."""
    version = _newest(topic)
    while version and _age_ms(topic, version - 1) < old_ms:
        version -= 1
    return version


def _newest(topic: Path) -> int:
    """Return the newest version that both formats have. It has the number of its publication."""
    version = 0
    while (topic / f"_delta_log/{version + 1:020d}.json").exists() and (
        topic / f"metadata/v{version + 2}.metadata.json"
    ).exists():
        version += 1
    return version


def _age_ms(topic: Path, version: int) -> int:
    """Return how long ago a version was replaced. Vacuum counts from the next publication, too."""
    return round((time.time() - (topic / f"publication/{version + 1:020d}.json").stat().st_ctime) * 1000)


def _read(engine: str, topic: Path, version: int | None, known: set[str]) -> dict[str, Any]:
    """Return one read: the digest of the rows' ids, and these ids if no read had them before."""
    began = time.monotonic()
    said: dict[str, Any] = {"engine": engine, "topic": topic.name, "version": version, "age_ms": 0}
    try:
        if version is not None and version < _newest(topic):
            said["age_ms"] = _age_ms(topic, version)
        ids = sorted(row["id"] for row in READERS[engine](str(topic), version))
    except Exception as error:
        said["error"] = f"{type(error).__name__}: {error}"[:600]
    else:
        said["rows"] = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
        if said["rows"] not in known:
            known.add(said["rows"])
            said["ids"] = ids
    said["took_ms"] = round((time.monotonic() - began) * 1000)
    return said


if __name__ == "__main__":
    main()
