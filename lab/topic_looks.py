"""How do lives whose other topics have no metadata look at topics?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txlog.protocol.topics import TopicLooks


@dataclass(frozen=True, slots=True, kw_only=True)
class LooksAtKnown(TopicLooks):
    """Looks at topics that the process has opened. Other topics of a scenario are partitions alone."""

    def hold(self, schema_ids: Mapping[str, int], deletions: int) -> bool:
        opened = {topic: number for topic, number in schema_ids.items() if topic in self.known}
        return TopicLooks.hold(self, opened, deletions)
