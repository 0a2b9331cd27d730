"""Is the store whole? Every object is read and compared with everything that must agree with it. Nothing is changed."""

from txlog.maintenance.fsck.store_check import FsckReport, check_store

__all__ = ["FsckReport", "check_store"]
