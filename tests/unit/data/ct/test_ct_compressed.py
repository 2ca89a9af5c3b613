"""Compressed DICOM: what can be decoded gives the same voxels, and what cannot is told by `check` and by `run`."""

import io
import re

import numpy as np
import pytest
import torch
from make_dicom import chest, write_centre, write_series
from PIL import Image, features
from pydicom.encaps import encapsulate
from pydicom.pixels import get_decoder
from pydicom.uid import JPEG2000Lossless, JPEGExtended12Bit, JPEGLosslessSV1, JPEGLSLossless, RLELossless

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.scans.transforms import LoadScand
from medpfl.runs.experiment import run_experiment

INSTALL = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"


def rle(n, dataset):
    dataset.compress(RLELossless)


def jpeg_2000(n, dataset):
    if not features.check("jpg_2000"):
        pytest.skip("Pillow without JPEG 2000")
    stored = np.frombuffer(dataset.PixelData, "<i2").reshape(dataset.Rows, dataset.Columns)
    encoded = io.BytesIO()
    Image.fromarray(stored.astype("<u2")).save(encoded, "JPEG2000", irreversible=False, no_jp2=True)
    dataset.PixelRepresentation = 0
    labelled(JPEG2000Lossless, encoded.getvalue())(n, dataset)


def labelled(syntax, content=None):
    """Pixels that are said to be compressed so, whatever they are."""

    def change(n, dataset):
        dataset.PixelData = encapsulate([content or dataset.PixelData])
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = syntax

    return change


def centre(folder, change):
    """Four patients, of whom one's series is changed."""
    write_centre(folder, [0, 1, 0, 1])
    for file in (folder / "s0").iterdir():
        file.unlink()
    write_series(folder / "s0", chest(), patient="P0", change=change)
    return folder


def errors(folder):
    return [finding.message for finding in check(folder) if finding.level == "error"]


def run(folder, out):
    config = make_config(
        algorithm="local",
        model="lenet5",
        data=str(folder),
        data_args={"size": 28, "slices": 2},
        sites=1,
        rounds=1,
        fractions=(0.5, 0.0, 0.5),
        device="cpu",
    )
    return run_experiment(config, out, env="inprocess")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("compress", [rle, pytest.param(jpeg_2000, marks=pytest.mark.slow)])
def test_what_can_be_decoded_is_the_same_volume(tmp_path, compress):
    folder = centre(tmp_path / "ct", compress)
    write_series(tmp_path / "plain", chest())
    volumes = [
        LoadScand("image")({"image": [str(f) for f in sorted(place.iterdir())], "kind": "dicom"})["image"]
        for place in (folder / "s0", tmp_path / "plain")
    ]
    assert torch.equal(*volumes)
    assert errors(folder) == []
    assert run(folder, tmp_path / "out")["status"] == "finished"


@pytest.mark.parametrize("syntax", [JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless])
def test_without_a_decoder_check_and_run_say_what_to_install(tmp_path, monkeypatch, syntax):
    monkeypatch.setattr(get_decoder(syntax), "_available", {})
    folder = centre(tmp_path / "ct", labelled(syntax))
    said = f"s0/000.dcm: compressed as {syntax.name}, for which no decoder is installed: {INSTALL}"
    # The whole series is one finding, so that it hides no other.
    (message,) = errors(folder)
    assert said in message
    with pytest.raises(UserError, match=re.escape(said)):
        run(folder, tmp_path / "out")


def test_a_decoder_that_fails_is_quoted_with_what_else_there_is(tmp_path, monkeypatch):
    # Pillow, which matplotlib brings, says that it reads this, and then reads 8 bits of it only.
    monkeypatch.setitem(get_decoder(JPEGExtended12Bit)._unavailable, "pylibjpeg", ("pylibjpeg-libjpeg>=2.1",))
    folder = centre(tmp_path / "ct", labelled(JPEGExtended12Bit))
    said = rf"\d+.dcm: its pixels cannot be decoded: .*pillow: .*12-bit.*{INSTALL}, or convert the series"
    (message,) = errors(folder)
    assert re.search(said, message) and "\n" not in message
    with pytest.raises(UserError, match=said):
        run(folder, tmp_path / "out")


def test_damaged_pixels_are_no_matter_of_decoders(tmp_path):
    def damaged(n, dataset):
        rle(n, dataset)
        if n == 6:
            dataset["PixelData"]._value = dataset.PixelData.replace(dataset.PixelData[24:60], b"\x81" * 36)

    (message,) = errors(centre(tmp_path / "ct", damaged))
    assert "006.dcm: its pixels cannot be decoded" in message and "pip install" not in message
