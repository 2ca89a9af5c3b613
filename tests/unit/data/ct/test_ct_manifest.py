import json

import pytest
from make_dicom import chest, write_centre, write_nifti

from medpfl.cli.options import Options
from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.kinds.registry import kind_of
from medpfl.data.kinds.scans.centre_scans import read_centre
from medpfl.data.kinds.scans.manifest import find_manifest, open_manifest
from medpfl.data.kinds.scans.scan_kind import ScanKind

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
        ({k: v for k, v in GOOD.items() if k != "schema"}, 'schema: is missing, write "schema": 1'),
        ({k: v for k, v in GOOD.items() if k != "classes"}, "classes: is missing"),
        (GOOD | {"classes": ["healthy", 1]}, "classes.1: must be text, in quotation marks, and is 1"),
        ({**GOOD, "classes": ["one"]}, "classes: .*at least 2"),
        ({**GOOD, "classes": ["one", "one"]}, "two entries for the class 'one'"),
        ({**GOOD, "classes": ["C#", "D"]}, r"classes\[0\]: 'C#' has '#', which MONAI's bundles take for a path"),
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
        (
            "series,label\na,x\nb,@x\n",
            r"classes\[0\]: '@x' begins with '@', which MONAI's bundles take for a reference",
        ),
        ("series,label\na,x\nb,x\n", "all scans have the label 'x'"),
        ("series,label\n", "has no rows"),
        ("", r"needs one column 'series' \(of pictures 'picture'\) in its first line, which has: nothing"),
        ("series,class\na,0", "needs one column 'label' in its first line, which has: series, class"),
        ("label,series,label\n0,a,0", "needs one column 'label'"),
        (b"series,label\n\xff\xfe,1", "not UTF-8"),
        ('series,label\na,0\n"b,1\nc,0\n', r"labels.csv, line 3: cannot be read as CSV: .*stray quotation mark"),
        (f'series,label\na,0\nb,"{"x" * 200_000}\n', r"labels.csv, line 3: cannot be read as CSV: field larger"),
        (f"series,label\na,{'1' * 5000}\nb,0\n", None),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, table, words):
    (tmp_path / "labels.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    if words:
        with pytest.raises(UserError, match=words):
            open_manifest(tmp_path)
    assert "error" in [finding.level for finding in check(tmp_path)]


def test_a_manifest_with_a_number_of_thousands_of_digits(tmp_path):
    with pytest.raises(UserError, match="cannot be read as JSON"):
        open_manifest(_write(tmp_path, '{"schema": ' + "1" * 5000 + "}"))


def test_labels_that_differ_in_case_or_spaces_are_not_two_classes(tmp_path):
    for name, labels in (("a", "s0,Emphysema\ns1,no  emphysema\n"), ("b", "s0,No emphysema\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "labels.csv").write_text(f"series,label\n{labels}")
    words = r"b/labels.csv, line 2: label 'No emphysema' differs .* from 'no  emphysema' \(.*a/labels.csv, line 3\)"
    with pytest.raises(UserError, match=words):
        open_manifest(tmp_path)


@pytest.mark.parametrize(
    "there, words",
    [
        ("labels.xlsx", "labels.xlsx is there: save it as CSV"),
        ("a/labels.xlsx", "a: labels.xlsx is there"),
        ("Labels.CSV", "Labels.CSV is there: call it labels.csv"),
        ("a/b/labels.csv", "b/labels.csv is there: it must lie in a itself"),
    ],
)
def test_what_lies_near_where_a_table_should_be_is_said(tmp_path, there, words):
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()
    with pytest.raises(UserError, match=words):
        open_manifest(tmp_path)


def test_a_spreadsheet_instead_of_the_manifests_table(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "labels.xlsx").touch()
    _write(tmp_path, GOOD)
    assert "labels.csv: there is no such file; labels.xlsx is there" in check(tmp_path)[2].message


def test_an_empty_folder_and_no_folder(tmp_path):
    with pytest.raises(UserError, match="the folder is empty"):
        open_manifest(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"neither manifest.json nor labels.csv or datalist.json"):
        open_manifest(tmp_path)
    with pytest.raises(UserError, match="there is no such file or folder"):
        open_manifest(tmp_path / "x")


def test_what_is_ct(tmp_path):
    _write(tmp_path, "{}")
    (tmp_path / "x.npz").touch()
    values = [tmp_path, tmp_path / "manifest.json", tmp_path / "x.npz", tmp_path / "no.json", "bloodmnist"]
    assert [ScanKind().is_here(str(value)) for value in values] == [True, True, False, False, False]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """$MEDPFL_DATA, the cache and the working folder, all empty."""
    for name in ("data", "cache/medpfl/ct", "work"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_a_name_means_scans_only_where_some_are(home):
    data = home / "data"
    for name in ("empty", "bloodmnist", "single", "several/north"):
        (data / name).mkdir(parents=True)
    (data / "notes.json").write_text("{}")
    _write(data, GOOD, "ours.json")
    for folder in (data / "single", data / "several" / "north"):
        (folder / "labels.csv").touch()
    scans = {
        n: ScanKind().is_here(n)
        for n in ("ct", "empty", "bloodmnist", "notes", "ours", "single", "several", "organamnist")
    }
    assert [name for name, found in scans.items() if found] == ["ours", "single", "several"]
    assert find_manifest("ours") == data / "ours.json" and find_manifest("several") == data / "several"
    # What a job names is opened, to say what it lacks.
    assert kind_of("empty", {"classes": ["a", "b"]}).name == "scans" and find_manifest("empty") == data / "empty"


def test_a_published_set_whose_images_are_here_keeps_its_name(home):
    (home / "data" / "bloodmnist").mkdir()
    (home / "data" / "bloodmnist" / "labels.csv").touch()
    assert ScanKind().is_here("bloodmnist")
    (home / "cache" / "medpfl" / "bloodmnist.npz").touch()
    assert not ScanKind().is_here("bloodmnist") and ScanKind().is_here(str(home / "data" / "bloodmnist"))


def test_a_folder_that_is_given_is_meant_whatever_is_in_it(home):
    (home / "work" / "mine").mkdir()
    for data in ("mine", "./mine", str(home / "work" / "mine")):
        assert ScanKind().is_here(data)
        with pytest.raises(UserError, match=r"mine: the folder is empty"):
            Options(data=data).config("fedavg")
    (home / "data" / "mine").mkdir()
    (home / "data" / "mine" / "labels.csv").touch()
    assert find_manifest("mine") == home / "data" / "mine"
    with pytest.raises(UserError, match=r"no/such: there is no such file or folder"):
        find_manifest("no/such")


def test_a_folder_that_is_called_like_a_set_does_not_hide_it(home):
    (home / "work" / "organamnist-sample").mkdir()
    assert Options(data="organamnist-sample").config("fedavg").data == "organamnist-sample"
    (home / "work" / "bloodmnist").mkdir()
    assert Options(data="bloodmnist").config("fedavg").data == "bloodmnist"


def test_a_function_of_the_users_own_is_no_scans():
    assert kind_of("module:function", {"classes": ["a", "b"]}).name == "function"


def test_check_finds_a_name(home):
    write_centre(home / "data" / "chest", [0, 1])
    assert "error" not in [finding.level for finding in check("chest")]


def test_a_centre_of_kind_nifti_whose_rows_are_series_is_told_which_kind_it_is(tmp_path):
    write_centre(tmp_path, [0, 1])
    centre = {"name": "north", "kind": "nifti", "folder": ".", "labels": "labels.csv"}
    content = {"schema": 1, "name": "ct", "classes": ["0", "1"], "centres": [centre]}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    words = "line 2: s0: there is no such file in .*the kind nifti for centre north: it is dicom where rows are series"
    with pytest.raises(UserError, match=words):
        read_centre(open_manifest(tmp_path), "north")
