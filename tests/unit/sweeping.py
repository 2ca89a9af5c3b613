"""Small sweeps, as a command and a program ask for them."""

from contextlib import nullcontext
from dataclasses import replace

from medpfl.config.fields import OPTIONS
from medpfl.runs.asked import as_meant
from medpfl.runs.comparison import How
from medpfl.runs.sweep import Sweep, run_sweep

TINY = {"sites": "2", "rounds": 1, "train_fraction": 0.05, "fractions": (0.2, 0.05, 0.05), "device": "cpu"}


def said(**fields):
    empty = {"data_args": {}, "model_args": {}, "settings": {}}
    return as_meant(dict.fromkeys(OPTIONS) | empty | TINY | fields)


def swept(tmp_path, algorithms, sweep, seeds=1, fields=None, **options):
    silent = nullcontext(lambda progress: None)
    how = How(lambda title, total: silent, "inprocess", threads=1, together=False, forgotten=False)
    return run_sweep(algorithms, Sweep.parse(sweep), seeds, fields or said(), tmp_path, replace(how, **options))
