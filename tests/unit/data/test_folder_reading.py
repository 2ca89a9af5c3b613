"""How a picture of any kind becomes a square array."""

import numpy as np
import pytest
from PIL import Image

from medpfl.core.errors import UserError
from medpfl.data.kinds.folders.picture_file import Reading, picture_size, read_picture, upright


def gradient(mode="RGB"):
    """Wide, dark on the left, and on the right as light as it can be."""
    return Image.fromarray(np.tile(np.linspace(0, 255, 64, dtype=np.uint8), (32, 1))).convert(mode)


def read(tmp_path, image, name="x.png", save=None, **reading):
    image.save(tmp_path / name, **(save or {}))
    return read_picture(tmp_path / name, Reading(size=16, **reading))


def test_how_a_picture_becomes_square(tmp_path):
    crop, pad, stretch = (read(tmp_path, gradient(), fit=fit) for fit in ("crop", "pad", "stretch"))
    assert crop.shape == pad.shape == stretch.shape == (3, 16, 16)
    assert crop.dtype == np.uint8
    assert 50 < crop[0, 8, 0] < 80 and 175 < crop[0, 8, -1] < 205
    assert stretch[0, 8, 0] < 15 and stretch[0, 8, -1] > 240
    assert not pad[:, :4].any() and not pad[:, -4:].any() and pad[0, 8, -1] > 240


def test_channels(tmp_path):
    rgb, grey = read(tmp_path, gradient("L")), read(tmp_path, gradient("RGB"), channels="grey")
    assert rgb.shape == (3, 16, 16) and (rgb == rgb[:1]).all()
    assert grey.shape == (1, 16, 16)
    np.testing.assert_array_equal(grey[0], rgb[0])


def test_sixteen_bits_palettes_transparency_and_other_kinds(tmp_path):
    plain = read(tmp_path, gradient("L")).astype(int)
    deep = Image.fromarray(np.asarray(gradient("L")).astype(np.uint16) * 257)
    for name in ("x.png", "x.tif"):
        np.testing.assert_allclose(read(tmp_path, deep, name), plain, atol=1)
    np.testing.assert_allclose(read(tmp_path, gradient().quantize(256)), plain, atol=2)
    np.testing.assert_allclose(read(tmp_path, gradient("CMYK"), "x.tif"), plain, atol=2)
    clear = gradient("RGBA")
    clear.putalpha(Image.fromarray(np.repeat(np.uint8([[255], [0]]), 16, 0).repeat(64, 1)))
    seen = read(tmp_path, clear)
    assert seen[:, :7].any() and not seen[:, 9:].any()


def test_a_turned_picture_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is on the right
    turned = read(tmp_path, gradient(), "x.jpg", {"exif": exif}, fit="stretch")
    assert turned[0, 0, 8] < 30 and turned[0, -1, 8] > 225
    assert picture_size(tmp_path / "x.jpg") == (32, 64)


def test_values_of_no_known_range(tmp_path):
    with pytest.raises(UserError, match=r"x.tif: cannot be read \(values from 0 to 2, mode F: 8 or 16 bits are needed"):
        read(tmp_path, Image.fromarray(np.linspace(0, 2, 64, dtype=np.float32)[None].repeat(9, 0)), "x.tif")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_white_as_zero_is_turned_over_in_every_depth(tmp_path, dtype):
    """Film digitisers write so (TIFF, PhotometricInterpretation 0). Pillow turns 8 bits itself, in writing too."""
    ramp = np.linspace(0, np.iinfo(dtype).max, 64).astype(dtype).reshape(8, 8)
    for name, tag in (("black.tif", 1), ("white.tif", 0)):
        Image.fromarray(ramp).save(tmp_path / name, tiffinfo={262: tag})
        assert Image.open(tmp_path / name).tag_v2[262] == tag
    black, white = (np.asarray(upright(tmp_path / name, "L")) for name in ("black.tif", "white.tif"))
    assert (black[0, 0], black[-1, -1]) == (0, 255)
    assert np.array_equal(white, black if dtype == np.uint8 else 255 - black)
