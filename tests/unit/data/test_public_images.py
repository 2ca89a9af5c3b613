"""Images that a synthesis starts from: CIFAR's binary files, folders of pictures, and what neither is."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.start_images import start_images
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data import cifar
from medpfl.data.public_images import public_images
from medpfl.data.sites import open_source


def write_cifar(file, images, labels=1):
    """Records as the format's page describes them: labels, then the planes."""
    rng = np.random.default_rng(0)
    records = [
        np.concatenate((rng.integers(0, 10, labels).astype(np.uint8), image.transpose(2, 0, 1).ravel()))
        for image in images
    ]
    file.write_bytes(np.concatenate(records).tobytes())


@pytest.fixture
def pictures():
    """Six (32, 32, 3) pictures, the k-th of red k, with one bright pixel in row 5, column 9 of the green plane."""
    made = np.zeros((6, 32, 32, 3), np.uint8)
    made[..., 0] = np.arange(6)[:, None, None]
    made[:, 5, 9, 1] = 255
    return made


def drawn(path, count=99, shape=(3, 32, 32), seed=0):
    return public_images(path, count, shape, np.random.default_rng(seed))


def reds(images):
    return ((images[:, 0, 0, 0] + 1) * 127.5).round().int().tolist()


@pytest.mark.parametrize("labels", [1, 2])
def test_cifars_records_are_read_plane_by_plane(tmp_path, pictures, labels):
    write_cifar(tmp_path / "a.bin", pictures, labels)
    images = drawn(tmp_path / "a.bin")

    assert images.shape == (6, 3, 32, 32) and images.dtype == torch.float32
    assert reds(images) == list(range(6))
    assert (images[:, 1] > 0).nonzero().tolist() == [[k, 5, 9] for k in range(6)]


def test_a_folders_files_are_one_set(tmp_path, pictures):
    (tmp_path / "cifar").mkdir()
    write_cifar(tmp_path / "cifar" / "data_batch_1.bin", pictures[:2])
    write_cifar(tmp_path / "cifar" / "data_batch_2.bin", pictures[2:])
    (tmp_path / "cifar" / "batches.meta.txt").write_text("airplane\n")
    assert reds(drawn(tmp_path)) == list(range(6))
    some = [reds(drawn(tmp_path, 3, seed=seed)) for seed in range(8)]
    assert all(len(set(found)) == 3 and found == sorted(found) for found in some) and len(set(map(tuple, some))) > 3
    assert some[0] == reds(drawn(tmp_path, 3, seed=0))
    assert drawn(tmp_path, 4, (1, 28, 28)).shape == (4, 1, 28, 28)


def test_images_stay_on_disk_until_they_are_drawn(tmp_path, pictures, monkeypatch):
    write_cifar(tmp_path / "a.bin", pictures)
    read = []
    real = cifar.CifarImages.read
    monkeypatch.setattr(cifar.CifarImages, "read", lambda self, rows: read.append(len(rows)) or real(self, rows))
    drawn(tmp_path, 2)
    assert read == [2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0" * 3000, "its 3,000 bytes are no whole number of records"),
        (b"", "its 0 bytes are no whole number of records"),
        (bytes([77]) * 3073, "some labels are none of CIFAR-10's"),
        (bytes([50]) * 3074, "some labels are none of CIFAR-100's"),
    ],
)
def test_what_is_not_in_the_format_is_named(tmp_path, content, words):
    (tmp_path / "some.bin").write_bytes(content)
    with pytest.raises(UserError, match=rf"some\.bin: .*{words}"):
        drawn(tmp_path)


def test_the_python_version_is_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('it ran')",))

    file = tmp_path / "data_batch_1"
    file.write_bytes(pickle.dumps(Bomb()))
    for path in (tmp_path, file):
        with pytest.raises(UserError, match="pickled, and reading that may run any code: take the binary version"):
            drawn(path)


def test_what_else_is_refused(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"x")
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    with pytest.raises(UserError, match="an archive: unpack it and give the folder"):
        drawn(tmp_path / "cifar-10-binary.tar.gz")
    with pytest.raises(UserError, match=r"one\.png: one picture: give the folder"):
        drawn(tmp_path / "one.png")
    (tmp_path / "a.bin").write_bytes(b"\0" * 3073)
    with pytest.raises(UserError, match=r"pictures \(one\.png\) and a\.bin: give a folder of one of the two"):
        drawn(tmp_path)
    phone = tmp_path / "phone"
    phone.mkdir()
    (phone / "a.heic").write_bytes(b"x")
    with pytest.raises(UserError, match=r"holds no image: 1 picture is not read \(\.heic\)"):
        drawn(phone)


def test_pictures_are_read_as_a_sites_are(tmp_path):
    """16-bit grey is not cut off, transparency is black, EXIF turns; other programs' hidden copies do not count."""
    Image.fromarray(np.full((8, 8), 257 * 100, np.uint16)).save(tmp_path / "a.png")
    Image.new("RGBA", (8, 8), (200, 200, 200, 0)).save(tmp_path / "b.png")
    turned = Image.new("RGB", (8, 8))
    turned.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 3  # half a turn
    turned.save(tmp_path / "c.png", exif=exif)
    (tmp_path / "._a.png").write_bytes(b"not a picture")

    grey, clear, half = drawn(tmp_path, shape=(3, 8, 8))
    assert ((grey + 1) * 127.5).round().unique().tolist() == [100]
    assert clear.unique().tolist() == [-1]
    assert half[0].argmax() == 63


def test_a_run_starts_from_them(tmp_path, pictures):
    write_cifar(tmp_path / "a.bin", pictures)
    fields = {"sites": 2, "rounds": 2, "data": "organamnist-sample", "model": "lenet5", "device": "cpu"}

    def start(path):
        settings = {"start": str(path), "images": 4, "warmup": 1}
        source = open_source(make_config(algorithm="fedimpres", settings=settings, **fields))
        return start_images(ImpressionSettings(**settings), source, public_images, source.config.seed)

    assert start(tmp_path).shape == (4, 1, 28, 28)
    assert torch.equal(start(tmp_path / "a.bin"), start(tmp_path))
    with pytest.raises(UserError, match=r"start: .*b\.bin: not in CIFAR's binary format"):
        (tmp_path / "b.bin").write_bytes(b"x")
        start(tmp_path)
