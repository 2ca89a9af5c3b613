"""Puts this folder on the import path, so that every test can use the federation in tiny.py."""

import pytest
import torch

from medpfl.core.permitted_code import permit

OWN = ("test_factory", "test_sites", "torch.nn")
"""Modules that the tests' configurations name."""


@pytest.fixture(autouse=True)
def _permitted():
    permit(*OWN)


@pytest.fixture(autouse=True)
def _one_thread():
    """Networks this small only wait for more threads."""
    torch.set_num_threads(1)
