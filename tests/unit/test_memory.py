"""What a process gives back to the system."""

import ctypes
import subprocess
import sys

import pytest

FREED = """
from pathlib import Path
from medpfl.core.memory import give_back_freed_memory, keep_freed_memory

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


ROUNDS = """
import gc, weakref
from medpfl.core.memory import RoundEnd

class Message:
    pass

gc.disable()
tidy_up = RoundEnd()
for _ in range(6):
    message = Message()
    message.itself = message
    left = weakref.ref(message)
    del message
    tidy_up()
    print(left() is None, gc.get_freeze_count() > 1000)
"""


def test_what_a_round_leaves_in_cycles_is_freed():
    done = subprocess.run([sys.executable, "-c", ROUNDS], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:-1] == ["False False", *["True True"] * 5]
