"""Maintenance, checks and an exactly-once daily load of a txlog store with Dagster.

Load it with `dagster dev --python-file dagster_jobs.py`, or add its jobs and schedules to your own Definitions. Install
txlog in the environment of your code location, and set TXLOG_STORE there.
"""

import csv
import datetime
import os
import subprocess

import dagster

import txlog

RETRY = dagster.RetryPolicy(max_retries=3, delay=300)
COLUMNS = {"day": "date32", "customer": "string", "amount": "float64"}
DAYS = dagster.DailyPartitionsDefinition(start_date="2026-11-01")


@dagster.op(retry_policy=RETRY)
def maintain() -> None:
    subprocess.run(["txlog", "maintain", "--once"], check=True)


# A retry would find the same damage. Status 4 means damage, so send an alarm if this op fails.
@dagster.op
def fsck() -> None:
    subprocess.run(["txlog", "fsck"], check=True)


@dagster.op(retry_policy=RETRY)
def load_day(context: dagster.OpExecutionContext) -> int:
    """Write the rows of one day in one transaction, and return how many are new."""
    day = datetime.date.fromisoformat(context.partition_key)
    rows = read_day(day)
    with txlog.open(os.environ["TXLOG_STORE"]) as store:
        store.create_topic("sales", COLUMNS, if_not_exists=True)
        # Each day has its own name, and each version of a day is written once.
        with store.producer(f"daily-{day}") as producer, producer.transaction(version=1) as transaction:
            producer.send("sales", rows)
    # After a crash, or in a backfill, Dagster runs the op again. Then txlog skips the rows.
    return 0 if transaction.result.skipped else len(rows)


def read_day(day: datetime.date) -> list[dict[str, object]]:
    """Return the rows of a day. Replace this by your own source."""
    with open(f"{os.environ['SALES_FOLDER']}/{day}.csv", newline="") as file:
        return [
            {"day": day, "customer": row["customer"], "amount": float(row["amount"])} for row in csv.DictReader(file)
        ]


@dagster.job
def txlog_maintain() -> None:
    maintain()


@dagster.job
def txlog_fsck() -> None:
    fsck()


@dagster.job(partitions_def=DAYS)
def txlog_daily_load() -> None:
    load_day()


definitions = dagster.Definitions(
    jobs=[txlog_maintain, txlog_fsck, txlog_daily_load],
    schedules=[
        dagster.ScheduleDefinition(job=txlog_maintain, cron_schedule="7 * * * *"),
        dagster.ScheduleDefinition(job=txlog_fsck, cron_schedule="30 3 * * 0"),
        dagster.build_schedule_from_partitioned_job(txlog_daily_load),
    ],
)
