"""A segmentation's delivered bundle, run by MONAI on new images: masks with their geometry, equal to evaluation's."""

import gzip

import nibabel
import numpy as np
import pytest
import torch
from masked import config, save_nifti, volume, write_picture, write_siblings, write_volumes
from monai.bundle import ConfigWorkflow
from PIL import Image

from medpfl.bundle.inference import items
from medpfl.core.errors import UserError
from medpfl.core.masked_data import Case
from medpfl.runs.experiment import run_experiment
from medpfl.tasks.segmentation.judging import predicted

RUN = {"rounds": 1, "fractions": (0.5, 0.25, 0.25), "task": "segmentation", "alone": "no"}
NETWORK = {"channels": [4, 8], "num_res_units": 0}


def trained(folder, data, **fields):
    run_experiment(config(data, **RUN, model_args=NETWORK, **fields), folder, env="inprocess", threads=1)
    return sorted((folder / "state").glob("*/selected"))[0]


def workflow(model, images, output):
    bundle = model / "bundle"
    made = ConfigWorkflow(
        config_file=str(bundle / "configs" / "inference.json"), workflow_type="inference",
        bundle_root=str(bundle), input_path=str(images), output_path=str(output),
    )  # fmt: skip
    made.initialize()
    return made


def test_a_picture_has_a_mask_of_its_size(tmp_path):
    model = trained(tmp_path / "run", write_siblings(tmp_path / "data"), data_args={"size": 32, "fit": "pad"})
    write_picture(tmp_path / "new" / "one.png", tmp_path / "masks" / "one.png", seed=7, size=(40, 64))
    made = workflow(model, tmp_path / "new", tmp_path / "out")
    made.run()
    mask = np.asarray(Image.open(tmp_path / "out" / "one_mask.png"))
    assert mask.shape == (40, 64)
    network, item = made.parser.get_parsed_content("network"), made.parser.get_parsed_content("dataset")[0]
    square = predicted(network.cpu().eval(), Case(torch.as_tensor(item["image"])[None], None, None), None).argmax(0)[0]
    # 64 x 40 pixels were 32 x 20 with 6 black rows above: every second pixel is the network's.
    np.testing.assert_array_equal(mask[::2, ::2], square[6:26].detach())
    card = (model / "bundle" / "docs" / "README.md").read_text()
    assert "writes a mask for each" in card


def test_one_mask_beside_a_picture_is_one(tmp_path, caplog):
    write_picture(tmp_path / "01.png", tmp_path / "01_mask.png", seed=7)
    assert [item["name"] for item in items(tmp_path, "picture", masks=True)] == ["01.png"]
    assert f"{tmp_path}: 1 mask by its name is left out, 01_mask.png first" in caplog.text


def test_masks_beside_the_pictures_are_neither_segmented_nor_overwritten(tmp_path, caplog):
    model = trained(tmp_path / "run", write_siblings(tmp_path / "data"), data_args={"size": 32})
    new = tmp_path / "new"
    for name in ("01", "02"):
        write_picture(new / f"{name}.png", new / f"{name}_mask.png", seed=7)
    before = {file: file.read_bytes() for file in new.iterdir()}
    workflow(model, new, tmp_path / "out").run()
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["01_mask.png", "02_mask.png"]
    assert f"{new}: 2 masks by their names are left out, 01_mask.png first" in caplog.text
    workflow(model, new / "01.png", tmp_path / "out").run()
    assert f"{tmp_path / 'out' / '01_mask.png'} was there and is replaced" in caplog.text
    (new / "01_mask.png").unlink()
    del before[new / "01_mask.png"]
    with pytest.raises(RuntimeError) as error:
        workflow(model, new, new).run()
    assert f"{new / '02_mask.png'} is there already, in the images' own folder" in str(error.value.__cause__)
    assert {file: file.read_bytes() for file in new.iterdir()} == before


def test_what_a_folder_to_segment_lacks_is_said(tmp_path):
    write_picture(tmp_path / "EZ" / "p1" / "01.png", tmp_path / "EZ" / "p1" / "01_mask.png", seed=7)
    with pytest.raises(UserError, match=r"its pictures lie in folders inside it: give one of those, e\.g\. .*EZ/p1$"):
        items(tmp_path / "EZ", "picture", masks=True)
    (tmp_path / "EZ" / "p1" / "01.png").unlink()
    with pytest.raises(UserError, match=r"by their names all its images are masks, 01_mask\.png first"):
        items(tmp_path / "EZ" / "p1", "picture", masks=True)
    assert len(items(tmp_path / "EZ" / "p1" / "01_mask.png", "picture", masks=True)) == 1


@pytest.mark.parametrize("dims", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_a_volume_has_a_mask_on_its_grid(tmp_path, caplog, dims):
    arguments = {"dims": dims, "spacing": [3.0, 2.0, 2.0]} | ({"patch": [8, 8, 8]} if dims == 3 else {"size": 16})
    model = trained(tmp_path / "run", write_volumes(tmp_path / "data"), data_args=arguments)
    # Sagittal, upside down: what counts is where a voxel lies, not how it is stored.
    affine = np.array([[0.0, 0, 3, 5], [-1.5, 0, 0, 7], [0, -1.5, 0, -9], [0, 0, 0, 1]])
    values, _ = volume(3, (22, 26, 9))
    image = save_nifti(tmp_path / "new" / "p1" / "scan.nii.gz", values, affine=affine)
    made = workflow(model, tmp_path / "new", tmp_path / "out")
    [found] = made.parser.get_parsed_content("evaluator").run()["results"]
    assert found["name"] == "p1/scan.nii.gz"
    mask = nibabel.load(tmp_path / "out" / "p1" / "scan_mask.nii.gz")
    np.testing.assert_allclose(mask.affine, nibabel.load(image).affine)
    assert mask.header.get_xyzt_units()[0] == "mm"
    assert mask.shape == (22, 26, 9)
    voxels = int((np.asarray(mask.dataobj) == 1).sum())
    assert found["voxels"] == {"foreground": voxels}
    assert found["ml"]["foreground"] == pytest.approx(voxels * 3 * 1.5 * 1.5 / 1000, abs=1e-3)
    stored = gzip.decompress(image.read_bytes())
    pixdim = np.full(3, 9, "<f4").tobytes()  # which says nothing of where voxels lie
    image.write_bytes(gzip.compress(stored[:80] + pixdim + stored[92:]))
    [again] = workflow(model, image, "").parser.get_parsed_content("evaluator").run()["results"]
    assert again["ml"] == found["ml"]
    (tmp_path / "new" / "p1" / "._scan.nii.gz").write_bytes(b"macOS")
    save_nifti(image, np.zeros((22, 26, 9), np.float32), affine=affine)
    (tmp_path / "out" / "p1" / "scan_mask.nii.gz").unlink()
    with pytest.raises(UserError, match=r"scan\.nii\.gz: every voxel has the value 0"):
        made.parser.get_parsed_content("evaluator").run()
    assert not list((tmp_path / "out").rglob("*.nii.gz"))
    save_nifti(tmp_path / "new" / "p2" / "scan.nii.gz", values, affine=affine)
    answer = workflow(model, tmp_path / "new", tmp_path / "out").parser.get_parsed_content("evaluator").run()
    assert [item["name"] for item in answer["results"]] == ["p2/scan.nii.gz"]
    assert [item["name"] for item in answer["left_out"]] == ["p1/scan.nii.gz"]
    assert [file.parent.name for file in (tmp_path / "out").rglob("*.nii.gz")] == ["p2"]
    save_nifti(tmp_path / "new" / "p2" / "scan.nii.gz", np.zeros((22, 26, 9), np.float32), affine=affine)
    save_nifti(image, values, affine=affine)
    workflow(model, tmp_path / "new", tmp_path / "out").parser.get_parsed_content("evaluator").run()
    assert "p2/scan_mask.nii.gz is of an earlier call, and no answer of this one" in caplog.text


@pytest.mark.parametrize("dims", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_odd_about_a_volume_is_said(tmp_path, caplog, dims):
    shape = {"dims": dims} | ({"patch": [8, 8, 8]} if dims == 3 else {"size": 16})
    data = write_volumes(tmp_path / "data", low=-900)
    model = trained(tmp_path / "run", data, data_args=shape | {"normalise": "window", "window": [-500, 500]})
    values, _ = volume(3, (22, 26, 9), low=-900)
    image = save_nifti(tmp_path / "scan.nii.gz", values)
    caplog.clear()
    workflow(model, image, "").run()
    assert str(image) not in caplog.text
    values[0, 0, :5] = np.nan
    save_nifti(image, values / 10)
    workflow(model, image, "").run()
    assert f"{image}: 5 voxels are not numbers (NaN): taken as the least value" in caplog.text
    assert f"{image}: no value is below -200: is it CT, in HU?" in caplog.text


def test_a_mask_lies_where_its_structure_does(tmp_path):
    """A network that calls what is bright a structure draws the block where it is, on any grid."""
    model = trained(tmp_path / "run", write_volumes(tmp_path / "data"), data_args={"patch": [8, 8, 8]})
    affine = np.array([[0.0, 0, 3, 5], [-1.5, 0, 0, 7], [0, -1.5, 0, -9], [0, 0, 0, 1]])
    values, true = volume(3, (22, 26, 9))
    save_nifti(tmp_path / "new" / "scan.nii.gz", values, affine=affine)
    made = workflow(model, tmp_path / "new", tmp_path / "out")
    evaluator = made.parser.get_parsed_content("evaluator")
    evaluator.network = Bright()
    evaluator.run()
    np.testing.assert_array_equal(np.asarray(nibabel.load(tmp_path / "out" / "scan_mask.nii.gz").dataobj), true)


class Bright(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return torch.cat([torch.zeros_like(x), x - self.cut], 1)
