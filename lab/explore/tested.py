"""Mutants of rules that no scenario of the explorer notices, each with a test that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow.parquet as pq

from lab.explore.mutant import CORE, HERE, Mutant, nothing, program_of
from txlog.core import envelope, groups, members, names, retention
from txlog.core.append_rules import Proceed, check_batch
from txlog.core.effects import List, PutIfAbsent
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.schema import max_field_id
from txlog.errors import OutcomeUnknownError, TxlogError
from txlog.protocol import topic_changes, topics
from txlog.protocol.load import refresh
from txlog.publication import catalog_table
from txlog.publication.expired import CatalogView
from txlog.storage.fsspec_store import FsspecObjectStore
from txlog.storage.object_store import PutOutcome

CLIENT, STORAGE, PUBLICATION = "txlog.client.", "txlog.storage.", "txlog.publication."
CATALOG = "publication/test_catalog.py::test_"


class _NeverError(Exception):
    """An error that no code raises."""


def _create_after_a_look(store: Any, path: str, data: bytes) -> Any:
    return PutOutcome.CONFLICT if store.get(path) is not None else _CREATE(store, path, data)


_CREATE = FsspecObjectStore.put_if_absent


def _first_of_all(store: Any, path: str, data: bytes, *_: Any) -> Any:
    """Create the first object of a probe, and assume that the store refuses the others."""
    is_first = data.startswith(b"txlog probe ") and not data.startswith(b"txlog probe again")
    return store.put_if_absent(path, data) if is_first else PutOutcome.CONFLICT


def _not_for_empty(store: Any, path: str, data: bytes, *_: Any) -> Any:
    return store.put_if_absent(path, data) if data else PutOutcome.CONFLICT


def _unchecked_writer(*given: Any, **more: Any) -> Any:
    return _WRITER(*given, **{**more, "write_page_checksum": False})


def _unchecked_file(*given: Any, **more: Any) -> Any:
    return _FILE(*given, **{**more, "page_checksum_verification": False})


_WRITER, _FILE = pq.ParquetWriter, pq.ParquetFile


def _whosever_files(tp: Any, record: Any, payload: bytes = b"", headroom_bytes: int = 0) -> Any:
    return stored_record(envelope.encode(record, payload), tp, record.base_offset)


def _judged_once() -> Callable[..., Any]:
    """Return a check whose first verdict about a batch counts for all slots."""
    verdicts: dict[Any, Any] = {}

    def check(state: Any, draft: Any) -> Any:
        return verdicts.setdefault(draft, check_batch(state, draft))

    return check


def _first_of_the_number(ctx: Any, metadata: Any) -> Any:
    """Take a version that exists for the process's own."""
    yield PutIfAbsent(names.topic_metadata_path(metadata.topic, metadata.number), envelope.encode(metadata))
    return True


def _finish_what_is_deleted(metadata: Any, append_log_start: Any) -> Any:
    """Finish a deletion as shipped, also where `finish_deletion` is replaced."""
    try:
        yield from _FINISH_DELETION(metadata, append_log_start)
    except TxlogError as error:
        raise OutcomeUnknownError(str(error)) from error


_FINISH_DELETION = topic_changes.finish_deletion


def _newest_of_the_name(known: Any, **_: Any) -> Any:
    return (yield from topics.find_topic(known.topic))


def _of_old_rows(view: Any) -> int:
    return int(view.state.next_offset) + 1


def _without_later_settings(current: Any, *given: Any) -> Any:
    made = _ALTERED(current, *given)
    kept = {name: value for name, value in made.config.items() if "not.known" not in name}
    return msgspec.structs.replace(made, config=kept)


_ALTERED = topic_changes._altered


def _any_staged_folder(name: str) -> Any:
    return _STAGED_FOLDER(name) or _STAGED_FOLDER("0-0-" + "0" * 32 + "/")


_STAGED_FOLDER = names.parse_staged_folder


def _unknown_is_empty(line: Any, **given: Any) -> Any:
    try:
        return _DECODE(line, **given)
    except msgspec.ValidationError as error:
        if "Invalid enum value" not in str(error):
            raise
        value = str(error).split("'")[1]
        return _DECODE(line.replace(value.encode(), b"EMPTY"), **given)


_DECODE = msgspec.json.decode


def _by_place(schema: Any, fields: Any) -> Any:
    return tuple(at if at < len(schema) else None for at in range(len(fields)))


def _decided_offset(state: Any, group: str, tp: Any, **_: Any) -> Any:
    return _FETCH_OFFSET(state, group, tp, require_stable=False)


_FETCH_OFFSET = groups.fetch_offset


def _without_a_generation(value: Any, members: Any, _: int) -> Any:
    return msgspec.structs.replace(value, members=tuple(each for each in value.members if each not in members))


def _sync_of_the_same_topics(row: Any, *, topics: Any = (), **more: Any) -> Any:
    return _JUDGE_SYNC(row, **more)


_JUDGE_SYNC = members.judge_sync


def _over_the_lso(walk: Any, wanted: int, last_stable_offset: int, hold: Any) -> int:
    return _BOUNDED(walk, wanted, 2**62, hold)


_BOUNDED = retention.bounded_end


def _not_read_back(tp: Any, record: Any, payload: bytes = b"", headroom_bytes: int = 0) -> Any:
    return StoredRecord(record=record, digest="", data=envelope.encode(record, payload), slot=record.base_offset)


_PROPERTIES = catalog_table.properties


def _as_if_copied(table: Any) -> dict[str, str]:
    return _PROPERTIES(table) | {"txlog.files": "copy"}


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, rules=rules, test=test, patches=patches)
    for name, rules, test, patches in (
        # The store
        ("a create looks first whether the object exists", "W1", "storage/test_fsspec_store.py::test_objects_are_read_by_one_request_and_created_by_one", {STORAGE + "fsspec_store.FsspecObjectStore.put_if_absent": _create_after_a_look}),
        ("the second create of a name is not tried", "W2", "storage/test_open.py::test_a_store_that_overwrites_is_refused", {STORAGE + "open._settled": _first_of_all}),
        ("an empty object is not probed", "W2", "storage/test_open.py::test_a_store_that_overwrites_is_refused", {STORAGE + "open._settled": _not_for_empty}),
        ("the clocks are not compared", "W2", "storage/test_open.py::test_clocks_that_differ_too_much", {STORAGE + "open._clock_agrees": lambda *_, **__: True}),
        ("a clock that was set is not compared again", "W2", "storage/test_open.py::test_a_clock_that_was_set_is_compared_again", {STORAGE + "open.clock_was_set": lambda *_: False}),
        ("a store is made beside other objects", "W3", "protocol/test_topics.py::TestStore::test_something_else_lies_there", {HERE + "stores.List": lambda _: List("nothing/")}),
        ("features are not compared", "W3, R1", "protocol/test_topics.py::TestStore::test_unknown_features_are_refused_even_if_the_rest_is_unreadable", {HERE + "stores.check_features": nothing}),
        ("names that are not known are vacuumed", "W59", "golden/test_frozen.py::test_names_that_are_not_known_yet_are_left_alone", {CORE + "names.parse_staged_folder": _any_staged_folder}),
        # Rows
        ("a file is named before it is durable", "W6", "storage/test_local.py::test_data_before_the_name_and_the_name_before_the_answer", {STORAGE + "local.LocalObjectStore._sync": nothing}),
        ("a record names a file of any producer", "W7", "protocol/test_slot.py::test_a_file_of_another_producer_or_epoch_is_refused", {HERE + "slot.encode_checked": _whosever_files}),
        ("a leader judges no batch again", "W67", "protocol/test_waiting.py::test_each_batch_is_judged_behind_those_before_it", {CORE + "combining.check_batch": lambda *_: Proceed()}),
        ("a busy writer never looks whether others wait", "W69", "protocol/test_waiting.py::test_a_busy_writer_that_finds_others_takes_them_with_it", {HERE + "waiting._others_wait": program_of(False)}),
        ("pages have no checksums", "W9", "storage/test_parquet_files.py::test_a_flipped_bit_in_a_page_of_a_large_file", {STORAGE + "parquet_writer.pq.ParquetWriter": _unchecked_writer}),
        ("records are not read back before the PUT", "W5", "protocol/test_slot.py::test_a_record_that_readers_would_refuse_is_never_written", {HERE + "slot.encode_checked": _not_read_back}),
        # Appending
        ("everybody writes the same write_id", "W4, W23", "protocol/test_transactions.py::test_two_inits_at_once", {"lab.simulate.cluster.Bucket.unique": lambda _: "0" * 32}),
        ("an unregistered batch is taken", "W22", "protocol/test_slot.py::test_append_batch_takes_only_a_registered_transaction", {HERE + "append._check_transaction": nothing}),
        ("parts of one partition are not merged", "W29", "protocol/test_slot.py::test_two_parts_of_one_partition_are_one_commit", {HERE + "transactions.merge_parts": tuple}),
        ("a batch is judged once", "W10", "protocol/test_slot.py::test_a_zombie_cannot_slip_in_between_the_check_and_the_append", {HERE + "append.check_batch": _judged_once()}),
        ("a record has its writer's time", "W11", "core/test_append_rules.py::test_timestamps_never_decrease", {CORE + "append_rules.max": lambda mine, last: mine}),
        ("producer ids are drawn among those of coordinators", "W18", "test_clock.py::test_ids_keep_their_contract", {"txlog.clock.SystemIds.new_producer_id": lambda _: 2**61}),
        ("segments are never full", "W20", "protocol/test_seal.py::test_appends_go_on_while_somebody_seals", {CORE + "append_rules.next_segment_base": lambda state, *_: state.segment_base}),
        ("an ONGOING leaves no room for its PREPARE_ABORT", "W43", "protocol/test_schedules.py::test_a_registration_leaves_room_for_the_abort", {HERE + "table._PREPARE_HEADROOM_BYTES": 0}),
        ("a later try does not look for the first one", "W44", "client/test_in_doubt.py::test_a_commit_that_won_is_answered_so_although_its_record_is_sealed_since", {HERE + "transactions._own_commit": nothing}),
        # Groups
        ("a member whose session is over returns rows", "W56", "client/test_members.py::test_a_member_that_slept_past_its_session_is_told", {CLIENT + "groups.members.SharedMembership._is_gone": lambda _: False}),
        ("a member joins the group of a job", "W57", "protocol/test_members.py::test_a_member_cannot_join_the_group_of_a_job", {HERE + "members.find_job": lambda *_: ""}),
        ("a job commits for a group of members", "W57", "protocol/test_members.py::test_a_job_cannot_commit_for_a_group_of_members", {CORE + "groups._check_alone": nothing}),
        ("a removal of one member makes no generation", "W51", "protocol/test_members.py::test_an_operator_removes_one_static_member", {HERE + "group_admin.without": _without_a_generation}),
        ("a sync for more topics keeps the topics", "W51", "client/test_members.py::test_a_pattern_takes_in_topics_that_are_created_later", {CORE + "members.judge_sync": _sync_of_the_same_topics}),
        # Topics
        ("a version that is there counts as created", "W39", "protocol/test_topics.py::TestAlter::test_a_lost_race_decides_again_on_what_won", {HERE + "topic_changes.put_version": _first_of_the_number}),
        ("keys of a compacted topic move", "W39", "cli/test_change.py::test_a_topic_whose_keys_have_moved_is_not_compacted", {HERE + "topic_changes.check_key_movement": program_of(None)}),
        ("ids of dropped columns are used again", "W39", "protocol/test_topics.py::test_a_name_that_is_created_again_begins_above_every_dropped_column", {HERE + "topic_changes.last_field_id": lambda version: max_field_id(version.schema)}),
        ("a name is created again before its partitions have ended", "W40", "protocol/test_topics.py::TestCreateAnew::test_the_deletion_is_finished_first", {HERE + "topic_changes.finish_deletion": program_of(None), HERE + "topic_changes._finish_decided": _finish_what_is_deleted}),
        ("a topic may have the descriptor's name", "W41", "core/test_names.py", {CORE + "names.STORE_DESCRIPTOR": "another"}),
        ("a deletion goes on with whatever has the name", "W50", "client/test_store.py::test_a_deletion_that_loses_the_race_spares_the_topic_that_was_made_anew", {HERE + "topic_changes.newest_version": _newest_of_the_name}),
        # Settings and clocks of the moment
        ("a job goes by the settings that it knows", "W45", "maintenance/test_maintain.py::test_rows_go_by_the_settings_of_this_moment", {"txlog.maintenance.round.Round.newest": lambda _, topic: topic}),
        ("retention does not compare the clocks", "W45", "maintenance/test_retention.py::test_a_clock_far_from_the_stores_removes_nothing", {CLIENT + "session.runtime.Runtime.ensure_writable": nothing}),
        ("a deletion of rows hides its own offset", "W49", "client/test_admin.py::test_a_consumer_that_has_read_everything_stays_in_range_of_deleted_records", {HERE + "append._end_of_rows": _of_old_rows}),
        # Readers
        ("objects of a later version are read", "R1", "golden/test_frozen.py::test_an_object_of_a_later_version_is_refused_whatever_else_it_holds", {CORE + "envelope.FORMAT_VERSION": 99}),
        ("nesting is not checked", "R2", "core/test_envelope.py::TestNesting::test_up_to_the_limit", {CORE + "envelope.check_depth": nothing}),
        ("a record names a file anywhere", "R3", "protocol/test_slot.py::test_a_record_that_readers_would_refuse_is_never_written", {CORE + "names.check_data_path": lambda topic, partition, path: path}),
        ("a new version drops settings that are not known", "R4", "golden/test_frozen.py::test_a_new_version_of_a_topic_keeps_unknown_settings", {HERE + "topic_changes._altered": _without_later_settings}),
        ("an opening believes slots that it slept over", "R7", "protocol/test_load.py::test_opening_that_slept_between_its_list_and_its_gets_lists_again", {HERE + "context.Context.max_view_age_ms": property(lambda _: 10**15)}),
        ("an index may be that of another segment", "R8", "protocol/test_read.py::test_an_index_of_another_segment_is_refused", {HERE + "read.check_index": nothing}),
        ("a .txnindex may have other entries", "R8", "protocol/test_read.py::test_an_index_of_another_segment_is_refused", {HERE + "read.check_txn_index": nothing}),
        ("a reader that tails never lists", "R9", "client/test_budget.py::test_listing_again_is_a_matter_of_age", {CLIENT + "session.session.refresh": lambda ctx, view, _: refresh(ctx, view)}),
        ("a read may begin below the log start", "R12", "protocol/test_read.py::test_ranges", {HERE + "read._check_range": nothing}),
        ("pages are not checked", "R13", "storage/test_parquet_files.py::test_a_flipped_bit_in_a_page_of_a_large_file", {STORAGE + "parquet_file.pq.ParquetFile": _unchecked_file}),
        ("columns are found by their place", "R14", "storage/test_parquet_files.py::test_columns_are_found_by_id", {STORAGE + "parquet_reader.find_columns": _by_place}),
        ("the rows that are read need not match", "R14a", "client/test_where.py::test_three_valued_logic_on_whole_numbers", {CLIENT + "tables.predicate.Predicate.keep": lambda _, batch: batch}),
        ("pending offsets are overlooked", "R16", "cli/test_errors.py::test_undecided_offsets_are_worth_another_try", {CORE + "groups.fetch_offset": _decided_offset}),
        ("ends come from a view that is held", "R17", "client/test_budget.py::test_latest_offsets_warm_are_one_get_a_partition", {CLIENT + "session.session.refresh": lambda ctx, view, *_: program_of(view)()}),
        ("a reader without write permission fails", "R18", "client/test_groups.py::test_reader_that_may_not_write_gets_the_offsets_that_are_decided", {HERE + "groups.StoreAccessError": _NeverError}),
        ("a state that is not known is taken for EMPTY", "R22", "golden/test_frozen.py::test_an_unknown_value_of_an_enumeration_is_damage_and_never_skipped", {"msgspec.json.decode": _unknown_is_empty}),
        # Clean-up
        ("an object is superseded since its author read the clock", "C5", "core/test_vacuum.py::test_a_list_that_came_late_counts_from_when_it_came", {CORE + "vacuum.collect_notes": lambda cleans: {each.name: each.since for each in cleans[-1][0].superseded}}),
        ("retention passes the LSO", "C7", "core/test_retention.py::test_only_whole_segments_below_the_lso_go", {CORE + "retention.bounded_end": _over_the_lso}),
        ("an index that a run covers is made again", "C12", "maintenance/test_repair.py::test_what_a_run_covers_is_not_made_while_its_records_are_there", {HERE + "repair._There.is_current": lambda *_: True}),
        ("a checkpoint replaces versions at once", "C14", "publication/test_expired.py::test_a_young_checkpoint_and_one_that_no_reader_is_told_of_replace_nothing", {"txlog.publication.expired._aged": lambda ctx, kept, folder, some: program_of(list(some))()}),
        # Catalogs
        ("a publisher that slept for the grace commits", "W60", CATALOG + "a_publisher_that_slept_for_the_grace_commits_nothing", {PUBLICATION + "catalog._Follower._is_young": lambda *_: True}),
        ("versions that name files of the log stay", "W60", CATALOG + "no_version_is_left_that_names_files_of_the_log", {PUBLICATION + "catalog_table.properties": _as_if_copied}),
        ("a table names files without copies", "W60", CATALOG + "the_table_follows_each_publication", {PUBLICATION + "catalog._write_copies": program_of(None)}),
        ("vacuum keeps the catalog's newest version alone", "C17", CATALOG + "a_version_that_was_the_newest_until_now_keeps_its_files", {PUBLICATION + "catalog_table.InCatalog.lists_since": lambda found, _: {found.number: found.lists[found.number]}}),
        ("vacuum takes no answer for a table elsewhere", "C17", CATALOG + "vacuum_without_an_answer_deletes_nothing_of_the_table", {"txlog.maintenance.vacuum.view_of_catalog": lambda *_: CatalogView(folder="another/")}),
    )
)  # fmt: skip
