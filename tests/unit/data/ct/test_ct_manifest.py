import json

import pytest
from make_dicom import chest, write_centre, write_nifti

from medpfl.data.ct.manifest import is_ct, open_manifest
from medpfl.errors import UserError

CENTRE = {"name": "a", "kind": "dicom", "folder": "a", "labels": "a/labels.csv"}
GOOD = {"schema": 1, "name": "chest-ct", "classes": ["healthy", "ill"], "centres": [CENTRE]}


def _write(folder, content, name="manifest.json"):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def test_a_manifest_is_read_with_its_defaults(tmp_path):
    path = _write(tmp_path, GOOD)
    for way in (path, tmp_path, str(tmp_path)):
        manifest = open_manifest(way)
        assert manifest.root == tmp_path and manifest.classes == ("healthy", "ill") and manifest.version == 1
        assert not manifest.skip_broken and not manifest.phantom
        assert manifest.centre("a").kind == "dicom" and str(manifest.centre("a").labels) == "a/labels.csv"


def test_a_manifest_may_have_any_name(tmp_path):
    assert open_manifest(_write(tmp_path, GOOD, "ours.json")).name == "chest-ct"


@pytest.mark.parametrize(
    "content, words",
    [
        ('{"schema": 1,\n "name": }', r"line 2, column 10"),
        ("[]", "not a manifest"),
        ({**GOOD, "clases": []}, r"clases: unknown field; there are schema, name, phantom, classes"),
        ({**GOOD, "root": "/"}, "root: unknown field"),
        ({**GOOD, "centres": [{**CENTRE, "kid": 1}]}, r"centres.0.kid: unknown field; there are name, kind"),
        ({**GOOD, "schema": 2}, "this version reads schema 1"),
        ({k: v for k, v in GOOD.items() if k != "schema"}, "schema: Field required"),
        ({**GOOD, "classes": ["one"]}, "classes: .*at least 2"),
        ({**GOOD, "classes": ["one", "one"]}, "two entries for the class 'one'"),
        ({**GOOD, "centres": [CENTRE, CENTRE]}, "two entries for the centre 'a'"),
        ({**GOOD, "centres": []}, "centres: .*at least 1"),
        ({**GOOD, "centres": [{**CENTRE, "kind": "png"}]}, "centres.0.kind: .*'dicom' or 'nifti'"),
        ({**GOOD, "centres": [{**CENTRE, "datalist": "x"}]}, "either `labels`"),
        ({"training": []}, "a datalist, not a manifest"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said_in_one_line(tmp_path, content, words):
    path = _write(tmp_path, content)
    with pytest.raises(UserError, match=words) as error:
        open_manifest(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_folder_of_centres_needs_no_manifest(tmp_path):
    write_centre(tmp_path / "b", ["ill", "healthy"])
    write_nifti(tmp_path / "a" / "x.nii.gz", chest())
    (tmp_path / "a" / "datalist.json").write_text(json.dumps({"training": [{"image": "x.nii.gz", "label": "ill"}]}))
    (tmp_path / "c").mkdir()
    manifest = open_manifest(tmp_path)
    assert [(c.name, c.kind) for c in manifest.centres] == [("a", "nifti"), ("b", "dicom")]
    assert manifest.classes == ("healthy", "ill") and manifest.name == tmp_path.name


def test_a_folder_may_be_one_centre_and_labels_numbers(tmp_path):
    write_centre(tmp_path / "b", [0, 3, 1])
    manifest = open_manifest(tmp_path / "b")
    assert [c.name for c in manifest.centres] == ["b"] and manifest.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "table, words",
    [
        ("series,label\na,1000000\n", "has the label 1000000"),
        ("series,label\na,x\nb,x\n", "all scans have the label 'x'"),
        ("series,label\n", "has no rows"),
        ("", "needs one column 'series' in its first line, which has: nothing"),
        ("series,class\na,0", "needs one column 'label' in its first line, which has: series, class"),
        ("label,series,label\n0,a,0", "needs one column 'label'"),
        (b"series,label\n\xff\xfe,1", "not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, table, words):
    (tmp_path / "labels.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    with pytest.raises(UserError, match=words):
        open_manifest(tmp_path)


def test_an_empty_folder_and_no_folder(tmp_path):
    with pytest.raises(UserError, match=r"neither manifest.json nor labels.csv or datalist.json"):
        open_manifest(tmp_path)
    with pytest.raises(UserError, match="there is no such file or folder"):
        open_manifest(tmp_path / "x")


def test_what_is_ct(tmp_path):
    _write(tmp_path, "{}")
    (tmp_path / "x.npz").touch()
    values = [tmp_path, tmp_path / "manifest.json", tmp_path / "x.npz", tmp_path / "no.json", "bloodmnist"]
    assert [is_ct(str(value)) for value in values] == [True, True, False, False, False]
