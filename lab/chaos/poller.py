"""Which rows do other engines see in the published tables while a storm runs?

`python -m lab.chaos.poller` runs in the engines' own environment, without txlog. It reads each table over and over,
with each engine in turn: the newest version, and an old one, as a slow query does. It appends a line of JSON for each
read, and one for the cut of each version, because vacuum deletes Delta's old entries. The proof judges the rows after
the storm. SIGTERM ends it after one more round.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
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
                folder = Path(given["store"], topic)
                file.writelines(json.dumps(cut) + "\n" for cut in _new_cuts(folder, known))
                for engine in READERS:
                    if not _exists(engine, folder):
                        continue
                    for version in (None, _old_version(folder, given["old_ms"])):
                        if version is None or not is_last:
                            said = _read(engine, folder, version, known)
                            file.write(json.dumps({**said, "last": is_last}) + "\n")
                            file.flush()
            if is_last:
                return
            time.sleep(PAUSE_S)
    sys.exit("the storm has died")


def _new_cuts(topic: Path, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the cut of each version in Delta's log that is not in `known` yet. The Iceberg table has the same cuts."""
    for version in _delta_versions(topic):
        name = f"{topic.name}/{version}"
        path = topic / f"_delta_log/{version:020d}.json"
        if name in known or not path.exists():
            continue
        known.add(name)
        info = json.loads(path.read_text("utf-8").partition("\n")[0])["commitInfo"]
        yield {"topic": topic.name, "cut": json.loads(info["operationParameters"]["txlog.cut"])}


def _exists(engine: str, topic: Path) -> bool:
    return bool(_delta_versions(topic)) if "delta" in engine else any(topic.glob("metadata/v*.metadata.json"))


def _old_version(topic: Path, old_ms: int) -> int:
    """Return the oldest version that was replaced no longer than that ago."""
    version = _newest(topic)
    while version and _age_ms(topic, version - 1) < old_ms:
        version -= 1
    return version


def _newest(topic: Path) -> int:
    """Return the newest version that both formats have. It has the number of its publication."""
    both = (each for each in _delta_versions(topic) if (topic / f"metadata/v{each + 1}.metadata.json").exists())
    return max(both, default=0)


def _delta_versions(topic: Path) -> list[int]:
    """Return the versions in Delta's log. From its hundredth one on, vacuum deletes the first ones."""
    return sorted(int(path.stem) for path in topic.glob("_delta_log/[0-9]*[0-9].json"))


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
