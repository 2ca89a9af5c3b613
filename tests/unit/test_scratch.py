import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from medpfl.algorithms.fedimpres.start_images import noise
from medpfl.core import scratch
from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed
from medpfl.core.site_data import scale
from medpfl.data.kinds.npz.catalog import SAMPLE, find, open_dataset
from medpfl.data.public_images import fitted, public_images


@pytest.fixture
def in_files(monkeypatch, tmp_path):
    """Everything goes into files, in a folder of its own."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(scratch, "IN_MEMORY_BYTES", 0)
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def mappings_in(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_tensor_lies_in_a_file_without_a_name_that_goes_with_it(in_files):
    tensor = scratch.allocate((3, 5), torch.float32).fill_(2)
    part = tensor[1:].clone(), tensor[2]
    assert mappings_in(in_files) == 1
    assert list(in_files.iterdir()) == []
    del tensor
    gc.collect()
    assert mappings_in(in_files) == 1
    assert part[1].sum() == 10
    del part
    gc.collect()
    assert mappings_in(in_files) == 0


def test_the_folder_is_the_one_that_the_environment_names_or_one_on_disk(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/some/where")
    assert scratch._folder() == Path("/some/where")
    monkeypatch.delenv("TMPDIR")
    assert scratch._folder() == Path("/var/tmp")


def test_no_space_or_no_folder_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(
        OSError, match=rf"no temporary file of \d+ MiB \(.*\); \$TMPDIR names another folder.*{tmp_path}"
    ):
        scratch.allocate((1 << 58,), torch.uint8)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="No such file or directory"):
        scratch.allocate((1 << 30,), torch.uint8)
    monkeypatch.setattr(scratch, "IN_MEMORY_BYTES", 0)
    with pytest.raises(UserError, match=r"4 images: .*\$TMPDIR"):
        noise(4, (3, 8, 8), 0)


def test_start_images_are_the_same_in_a_file(in_files, monkeypatch, tmp_path):
    def start():
        made = [noise(70, (3, 8, 8), 1), public_images(tmp_path, 99, (1, 12, 12), np.random.default_rng(1))]
        return [*made, public_images(find(SAMPLE), 130, (3, 20, 20), np.random.default_rng(1))]

    for number in range(5):
        Image.new("RGB", (10, 12), (50 * number, 9, 0)).save(tmp_path / f"{number}.png")
    filed = start()
    assert mappings_in(in_files) == 3
    monkeypatch.setattr(scratch, "IN_MEMORY_BYTES", 1 << 30)
    assert all(torch.equal(a, b) for a, b in zip(filed, start(), strict=True))


def test_noise_is_one_draw():
    generator = torch.Generator().manual_seed(derive_seed(3, "impression", "noise"))
    assert torch.equal(noise(70, (3, 5, 5), 3), torch.randn(70, 3, 5, 5, generator=generator))


def test_images_are_fitted_as_they_would_be_together():
    together = fitted(scale(open_dataset(SAMPLE).images_chw(range(3800))), (3, 20, 20))
    assert torch.equal(public_images(find(SAMPLE), 10**6, (3, 20, 20), np.random.default_rng(0)), together)


LIMITED = """
import resource
import torch
from torch import nn
from medpfl.algorithms.fedimpres.start_images import noise
from medpfl.core import scratch
from medpfl.core.parameters import ParameterSplit
from medpfl.core.declarations import Nothing
from medpfl.algorithms.fedimpres.impress import impression_maker
from medpfl.algorithms.fedimpres.settings import ImpressionSettings

torch.set_num_threads(1)
MIB = 1 << 20
settings = ImpressionSettings(admm_iterations=1, inner_steps=1, pixel_lr=0.1, rho=0.2, gamma=0.01, synthesis_batch=1)

def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(64), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))

def impression(images):
    split = ParameterSplit(make_model(), Nothing())
    start = noise(images, (1, 256, 256), 0)
    shared = split.shared_state(make_model())
    return impression_maker(split, make_model, split.personal_state(make_model()), start, settings)(shared)

impression(32)
taken = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
limit = taken + 64 * MIB + 40 * MIB  # the message in float16, and room for steps, which take some 20 MiB
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for largest in (1 << 40, 16 * MIB):
    scratch.IN_MEMORY_BYTES = largest
    try:
        tensors, report = impression(512)  # 128 MiB in float32
        print("made", len(tensors["images"]), report["images"], report["moved"] > 0)
    except (RuntimeError, MemoryError) as error:
        print("no memory", "allocate" in str(error))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts what is not a file's on Linux alone")
def test_a_set_that_does_not_fit_into_memory():
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == ["no memory True", "made 512 512 True"], done.stdout + done.stderr
