"""The version of this package; also where a job carries its code and nothing is installed."""

__version__ = "0.1.0"
