"""Does the chain of a group whose members share partitions keep the rules (PROTOCOL.md, W51 to W55)?

This judges records one by one, and shares no code with `txlog.core.members`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlog.core.records import CommitRecord, GroupEntry, GroupMember, HeartbeatEntry, OffsetEntry


@dataclass(slots=True)
class Group:
    """A group after the records so far."""

    generation: int = 0
    members: dict[str, GroupMember] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    stamps: dict[str, int] = field(default_factory=dict)
    """The timestamp of each member's last heartbeat."""

    def is_over(self, name: str, now_ms: int) -> bool:
        """Return whether the session of a member is over."""
        return now_ms - self.beats[name] > self.members[name].session_timeout_ms


def wrong(groups: dict[str, Group], record: CommitRecord, written_ms: int | None = None) -> str | None:
    """Return what a record does against the rules, and take it into `groups`.

    `written_ms` is the true time of the record. Without it all clocks are right, and processes know no other times than
    those of records. With it, a member alone knows whether its own session is over, and no record shows that.
    """
    now_ms = record.timestamp if written_ms is None else written_ms
    beats = {(entry.group, entry.member_id) for entry in record.entries if isinstance(entry, HeartbeatEntry)}
    found = None
    for entry in record.entries:
        if isinstance(entry, OffsetEntry):
            found = found or _wrong_commit(
                groups.get(entry.group, Group()), entry, now_ms, knows_itself=written_ms is not None
            )
        elif isinstance(entry, GroupEntry):
            new = {each.member_id: each for each in entry.value.members} if entry.value is not None else {}
            group = groups.setdefault(entry.group, Group())
            if new or group.members:
                by = next((name for at, name in beats if at == entry.group), None)
                found = found or _wrong_change(group, new, by, entry, now_ms, knows_itself=written_ms is not None)
            group.members = new
            group.generation = entry.value.generation if entry.value is not None else 0
        elif isinstance(entry, HeartbeatEntry):
            group = groups.get(entry.group, Group())
            name = entry.member_id
            if name in group.members:
                if written_ms is None and name in group.beats and group.is_over(name, now_ms):
                    found = found or f"a heartbeat of member {name}, whose session is over"
                if record.timestamp <= group.stamps.get(name, -1):
                    found = (
                        found
                        or f"a heartbeat of member {name} at {record.timestamp}, and it had one at {group.stamps[name]}"
                    )
                group.beats[name], group.stamps[name] = now_ms, record.timestamp
    return found


def _owned(members: dict[str, GroupMember]) -> dict[tuple[str, int], list[str]]:
    owners: dict[tuple[str, int], list[str]] = {}
    for name, member in members.items():
        for topic, numbers in member.owned.items():
            for number in numbers:
                owners.setdefault((topic, number), []).append(name)
    return owners


def _wrong_commit(group: Group, entry: OffsetEntry, now_ms: int, *, knows_itself: bool) -> str | None:
    said = entry.value.metadata.split() if entry.value is not None else []
    if said == ["outsider"]:
        living = [name for name in group.members if not group.is_over(name, now_ms)]
        return f"a plain commit of a consumer that is no member beside {living}" if living else None
    if len(said) != 3 or said[0] != "member":
        return None
    name, generation = said[1], int(said[2])
    if name not in group.members:
        return f"a commit of {name}, which is no member"
    if group.members[name].generation != generation:
        return f"a commit of {name} in generation {generation}, which has seen {group.members[name].generation}"
    if not knows_itself and group.is_over(name, now_ms):
        return f"a commit of {name}, whose session is over"
    owners = _owned(group.members).get((entry.topic, entry.partition), [])
    return f"a commit of {name} for a partition of {owners or 'nobody'}" if name not in owners else None


def _wrong_change(
    group: Group, new: dict[str, GroupMember], by: str | None, entry: GroupEntry, now_ms: int, *, knows_itself: bool
) -> str | None:
    before, after = _owned(group.members), _owned(new)
    heirs = {
        old.member_id: each.member_id
        for each in new.values()
        for old in group.members.values()
        if each.instance_id and each.instance_id == old.instance_id and each.member_id not in group.members
    }
    removed = [name for name in group.members if name not in new and name not in heirs]
    live = [name for name in removed if not group.is_over(name, now_ms)]
    generation = entry.value.generation if entry.value is not None else 0
    for tp, owners in after.items():
        if len(owners) > 1:
            return f"partition {tp} has the owners {owners}"
        taken = [name for name in before.get(tp, []) if name in new and name not in owners]
        if taken:
            return f"partition {tp} went from {taken} to {owners} in one record"
    for name in set(new) & set(group.members):
        lost = {tp for tp, owners in before.items() if name in owners} - {
            tp for tp, owners in after.items() if name in owners
        }
        if lost and name != by:
            return f"{by} took {sorted(lost)} from {name}"
    if by is not None and live:
        return f"{by} removed {live}, whose sessions are not over"
    if by is None and len(live) > 1:
        return f"{live} were removed, whose sessions are not over"
    instances = [each.instance_id for each in new.values() if each.instance_id]
    if len(set(instances)) < len(instances):
        return f"two members bear one instance: {instances}"
    changed = bool(removed) or any(name not in group.members for name in new if name not in heirs.values())
    if changed and new and generation != group.generation + 1:
        return f"generation {generation} follows {group.generation}"
    if not knows_itself and by is not None and by in group.members and group.is_over(by, now_ms):
        return f"a sync of {by}, whose session is over"
    return None
