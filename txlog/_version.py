"""The version of the distribution; the format's own version stands in `txlog.core.features`."""

__version__ = "0.1.0"
