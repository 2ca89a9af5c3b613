import gzip
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from make_dicom import chest, write_centre, write_nifti

from medpfl.core.errors import UserError
from medpfl.core.version import version
from medpfl.data.check import check
from medpfl.data.kinds.scans import slice_cache
from medpfl.data.kinds.scans.centre_scans import read_centre
from medpfl.data.kinds.scans.dicom_reader import SeriesReader
from medpfl.data.kinds.scans.manifest import open_manifest
from medpfl.data.kinds.scans.nifti import read_volume
from medpfl.data.kinds.scans.preprocessing import Preprocessing
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.places import private_folder

SMALL = Preprocessing(size=16, slices=8, lung_crop=False, spacing=(0, 0, 0))


def load_scans(*arguments, **choices):
    return list(slice_cache.load_scans(*arguments, **choices))


@pytest.fixture
def scans(tmp_path):
    write_centre(tmp_path / "MISTER-SECRET", ["0", "1"])
    return read_centre(open_manifest(tmp_path / "MISTER-SECRET"), "MISTER-SECRET")


@pytest.fixture
def decodes(monkeypatch):
    """Files that were read, series by series."""
    read, names = SeriesReader.read, []

    def counted(self, data, **kwargs):
        names.append(data)
        return read(self, data, **kwargs)

    monkeypatch.setattr(SeriesReader, "read", counted)
    return names


def test_a_volume_is_decoded_once(tmp_path, scans, decodes):
    first = load_scans(scans, SMALL, tmp_path / "cache")
    second = load_scans(scans, SMALL, tmp_path / "cache")
    assert len(decodes) == 2 and all(torch.equal(a.slices, b.slices) for a, b in zip(first, second, strict=True))
    assert [found.look for found in first] == [found.look for found in second]
    slices = first[0].slices
    assert slices.shape == (8, 1, 16, 16) and slices.dtype == torch.float16 and type(slices) is torch.Tensor


def test_another_path_to_the_same_files_is_not_decoded_anew(tmp_path, scans, decodes, monkeypatch):
    load_scans(scans, SMALL, tmp_path / "cache")
    (tmp_path / "link").symlink_to(tmp_path / "MISTER-SECRET")
    monkeypatch.chdir(tmp_path)
    for path in ("link", "MISTER-SECRET"):
        again = read_centre(open_manifest(Path(path)), "MISTER-SECRET")
        assert len(load_scans(again, SMALL, tmp_path / "cache")) == 2
    assert len(decodes) == 2


def test_what_a_kill_left_half_written_goes_after_a_day(tmp_path, scans):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    old, young = cache / ".a.safetensors.1.tmp", cache / ".b.safetensors.2.tmp"
    for file, hours in ((old, 25), (young, 23)):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - hours * 3600,) * 2)
    load_scans(scans[:1], SMALL, cache)
    assert young.exists() and not old.exists()
    assert len(list(cache.glob("*.safetensors"))) == 1


def test_another_preprocessing_or_a_changed_file_is_decoded_anew(tmp_path, scans, decodes):
    load_scans(scans[:1], SMALL, tmp_path / "cache")
    load_scans(scans[:1], SMALL.model_copy(update={"size": 8}), tmp_path / "cache")
    assert len(decodes) == 2
    os.utime(scans[0].files[3], ns=(1, 1))
    load_scans(scans[:1], SMALL, tmp_path / "cache")
    assert len(decodes) == 3


@pytest.mark.parametrize("damage", [lambda c: c[:100], lambda c: b"", lambda c: c[:-7] + b"\x77" + c[-6:]])
def test_a_damaged_file_of_the_cache_is_made_again(tmp_path, scans, decodes, damage):
    (good,) = load_scans(scans[:1], SMALL, tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    for _ in range(2):
        assert torch.equal(load_scans(scans[:1], SMALL, tmp_path / "cache")[0].slices, good.slices)
    assert len(decodes) == 2


def test_the_cache_knows_no_path_and_no_patient(tmp_path, scans):
    load_scans(scans, SMALL, tmp_path / "cache")
    files = list((tmp_path / "cache").iterdir())
    assert len(files) == 2
    for file in files:
        content = file.name.encode() + file.read_bytes()
        for word in (b"SECRET", b"P0", b"P1", b".dcm", str(tmp_path).encode(), scans[0].id.encode()):
            assert word not in content


def _spoil(scan):
    content = scan.files[4].read_bytes()
    scan.files[4].write_bytes(content[:-100])


def test_what_cannot_be_decoded_is_named_and_nothing_is_kept(tmp_path, scans):
    _spoil(scans[0])
    with pytest.raises(UserError, match=r"004.dcm: its pixels cannot be decoded: ") as error:
        load_scans(scans, SMALL, tmp_path / "cache")
    assert "\n" not in str(error.value) and not list((tmp_path / "cache").iterdir())


def test_a_broken_scan_gives_none_if_it_may(tmp_path, scans, caplog):
    _spoil(scans[0])
    broken, whole = load_scans(scans, SMALL, tmp_path / "cache", skip_broken=True)
    assert broken is None and len(whole.slices) == 8 and "004.dcm" in caplog.text


def test_a_missing_file_is_named(tmp_path, scans):
    scans[0].files[4].unlink()
    with pytest.raises(UserError, match=r"004.dcm: No such file"):
        load_scans(scans, SMALL, tmp_path / "cache")


@pytest.mark.parametrize("content", [b"junk", None])
def test_a_damaged_nifti_file_is_named(tmp_path, content):
    path = write_nifti(tmp_path / "x.nii.gz", chest())
    path.write_bytes(content or path.read_bytes()[:-400])
    with pytest.raises(UserError, match=r"x.nii.gz: cut short or damaged: "):
        load_scans([Scan("c", "p", 0, None, "nifti", (path,), "x")], SMALL, tmp_path / "cache")


def test_four_dimensions_are_refused(tmp_path):
    path = write_nifti(tmp_path / "x.nii", chest())
    import nibabel

    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4, 3), np.int16), np.eye(4)), path)
    with pytest.raises(UserError, match="has 4 dimensions"):
        load_scans([Scan("c", "p", 0, None, "nifti", (path,), "x")], SMALL, tmp_path / "cache")


def test_a_cache_that_cannot_be_made(tmp_path, scans):
    (tmp_path / "cache").touch()
    with pytest.raises(UserError, match="the cache cannot be made"):
        load_scans(scans, SMALL, tmp_path / "cache")


def test_the_cache_is_for_its_owner_alone(tmp_path, scans):
    before = os.umask(0o022)
    try:
        load_scans(scans, SMALL, tmp_path / "medpfl" / "ct")
    finally:
        os.umask(before)
    for folder in (tmp_path / "medpfl", tmp_path / "medpfl" / "ct"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("was", "then"), [(0o777, 0o770), (0o750, 0o750), (0o705, 0o700)])
def test_what_all_users_may_do_in_a_cache_that_is_there_is_taken_from_them(tmp_path, was, then):
    folder = tmp_path / "ct"
    folder.mkdir()
    folder.chmod(was)
    assert stat.S_IMODE(private_folder(folder).stat().st_mode) == then


def test_a_cache_of_another_user_that_is_open_to_all_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(UserError, match=r"belongs to another user, .*; set XDG_CACHE_HOME"):
        private_folder(tmp_path)
    tmp_path.chmod(0o770)  # shared with a group
    assert private_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("library", ["torch", "monai", "pydicom", "nibabel"])
def test_another_version_of_a_library_decodes_anew(tmp_path, scans, decodes, monkeypatch, library):
    load_scans(scans[:1], SMALL, tmp_path / "cache")
    monkeypatch.setattr(slice_cache, "version", lambda name: "99" if name == library else version(name))
    load_scans(scans[:1], SMALL, tmp_path / "cache")
    assert len(decodes) == 2


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path):
    path = write_nifti(tmp_path / "x.nii.gz", chest())
    content = bytearray(path.read_bytes())
    stored = gzip.compress(gzip.decompress(bytes(content)), compresslevel=0)  # a flipped bit is still valid deflate
    stored = bytearray(stored)
    stored[len(stored) // 2] ^= 4
    path.write_bytes(stored)
    assert read_volume(path).usable  # the header and the length are right
    write_nifti(tmp_path / "y.nii.gz", chest(seed=1))
    (tmp_path / "labels.csv").write_text("series,label\nx.nii.gz,0\ny.nii.gz,1\n")
    (words,) = [f.message for f in check(tmp_path) if f.level == "error"]
    assert "x.nii.gz: cut short or damaged: CRC check failed" in words
    with pytest.raises(UserError, match=r"x.nii.gz: cut short or damaged: CRC check failed"):
        load_scans([Scan("c", "p", 0, None, "nifti", (path,), "x")], SMALL, tmp_path / "cache")


def test_values_without_their_offset_stop_a_run_whatever_is_read_from_the_cache(tmp_path):
    path = write_nifti(tmp_path / "x.nii", chest() + 1024)
    scan = Scan("c", "p", 0, None, "nifti", (path,), "x")
    for _ in range(2):
        with pytest.raises(UserError, match=r"x.nii: values from .* look like HU without their offset of -1024"):
            load_scans([scan], SMALL, tmp_path / "cache")
    assert load_scans([scan], SMALL, tmp_path / "cache", skip_broken=True) == [None]


def test_what_was_found_is_kept_beside_the_slices(tmp_path, decodes):
    write_centre(tmp_path / "north", ["0", "1"], spacing=(5, 5, 5))
    scans = read_centre(open_manifest(tmp_path / "north"), "north")
    how = SMALL.model_copy(update={"lung_crop": True})
    for _ in range(2):
        (found,) = load_scans(scans[:1], how, tmp_path / "cache")
        look = found.look
        assert look.crop and look.lungs and look.kept == 1 and look.cut == 0 and look.problems == ()
        assert look.shape == (32, 32, 12) and sum(look.values) == pytest.approx(1, abs=1e-3)
    assert len(decodes) == 1 and not load_scans(scans[:1], SMALL, tmp_path / "cache")[0].look.crop
