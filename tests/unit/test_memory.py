"""What a process gives back to the system."""

import ctypes
import subprocess
import sys

import pytest

FREED = """
from pathlib import Path
from medpfl.memory import give_back_freed_memory, keep_freed_memory

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_freed_memory()
blocks = [bytes(100_000) for _ in range(2000)]
del blocks
print(pages())
give_back_freed_memory()
print(pages())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="needs Linux and glibc",
)
def test_freed_memory_is_given_back():
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True, timeout=60)
    kept, left = map(int, done.stdout.split())
    assert left < kept / 3
