"""The version of the distribution; `txlog.core.features` has the version of the format."""

__version__ = "0.9.0"
