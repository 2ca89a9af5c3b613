"""A site's bundle gives a scan, as DICOM or as NIfTI, the probabilities that the site's own evaluation gives it."""

import json
import shutil

import nibabel
import numpy as np
import pytest
import torch
from hospitals import write_cohort
from monai.bundle import ConfigWorkflow
from pydicom import dcmread

from medpfl.config.run import make_config
from medpfl.core.statefile import read_state
from medpfl.data.kinds.scans.transforms import LoadScand
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.site.store import DiskStore
from medpfl.tasks.evaluation import predict, softmax

SMALL_VIT = {"hidden_size": 12, "mlp_dim": 12, "num_layers": 1, "patch_size": 8}
SLICES = {"mean": 3, "attention": 14}
"""The scans have 12 slices: bags of 14 repeat some."""


TINY_3D = {"init_features": 4, "growth_rate": 4, "block_config": [1, 1], "bn_size": 2}
VIT, DENSE = ({"model": m, "model_args": a} for m, a in (("vit-tiny", SMALL_VIT), ("monai:DenseNet", TINY_3D)))


@pytest.mark.parametrize(
    ("algorithm", "network", "pooling", "depth", "task", "said"),
    [
        ("vit-heads", VIT, "mean", 0, "classification", {}),
        pytest.param("fedbn", DENSE, "mean", 8, "classification", {}, marks=pytest.mark.slow),
        pytest.param("vit-heads", VIT, "attention", 0, "classification", {}, marks=pytest.mark.slow),
        pytest.param("vit-heads", VIT, "mean", 0, "multi-label", {}, marks=pytest.mark.slow),
        pytest.param("fedbn", DENSE, "mean", 8, "classification", {"normalise": "percentile"}, marks=pytest.mark.slow),
        pytest.param("fedblend", DENSE, "mean", 8, "classification", {}, marks=pytest.mark.slow),
    ],
)
def test_probabilities_are_those_of_the_evaluation(
    tmp_path, monkeypatch, algorithm, network, pooling, depth, task, said
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cohort = write_cohort(tmp_path / "cohort", centres=2)
    for file in cohort.rglob("*.dcm") if said else ():
        dataset = dcmread(file)
        dataset.Modality = "MR"
        dataset.save_as(file)
    for table in cohort.rglob("labels.csv") if task == "multi-label" else ():
        table.write_text(table.read_text().replace("label", "labels").replace(",1\n", ",a|b\n").replace(",0\n", ",a\n"))
    run_config = make_config(
        algorithm=algorithm,
        data=str(cohort),
        data_args={"size": 16, "slices": SLICES[pooling], "spacing": [0, 0, 4], "depth": depth} | said,
        **network,
        task=task,
        pooling=pooling,
        sites=2,
        rounds=1,
        local_epochs=1,
        fractions=(0.5, 0.0, 0.5),
        device="cpu",
    )
    federation = Federation.of(run_config)
    names = run_config.site_names
    sites = {name: federation.site(name, DiskStore(tmp_path / "state" / name, durable=False)) for name in names}
    run_in_process(federation.plan(), sites, federation.model, workers=1)

    place = tmp_path / "state" / "site-1" / "last"
    model = federation.model()
    model.load_state_dict(read_state(place / "model.safetensors")[0])
    expected, labels = predict(model, sites["site-1"].data, "test", torch.sigmoid if task == "multi-label" else softmax)
    scans = federation.source._parts("centre-1")["test"]
    assert np.array_equal([scan.target for scan in scans], labels)

    dicom = scans[1].files[0].parent
    volume = LoadScand("image")({"image": list(map(str, scans[1].files)), "kind": "dicom"})["image"]
    nifti = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(volume.numpy(), np.asarray(volume.affine)), nifti)
    for path in (dicom, nifti):
        found = classified(place / "bundle", path, tmp_path / "out.json")
        assert found == pytest.approx(expected[1].tolist(), abs=1e-5), path

    together, other = tmp_path / "several", scans[0].files[0].parent
    shutil.copytree(dicom, together / "whole")
    shutil.copytree(other, together / "torn")
    whole, torn = (dcmread(next(f.glob("*.dcm"))).SeriesInstanceUID for f in (dicom, other))
    for file in (together / "torn").glob("*.dcm"):
        broken = dcmread(file)
        broken.RescaleSlope = 0
        broken.save_as(file)
    assert classified(place / "bundle", together, tmp_path / "out.json") == found
    answer = json.loads((tmp_path / "out.json").read_text())
    assert [item["name"] for item in (*answer["results"], *answer["left_out"])] == [whole, torn]
    assert str(together / "torn") in answer["left_out"][0]["why"]
    (together / "torn" / "._001.dcm").write_bytes(b"macOS")
    next((together / "torn").glob("[!.]*.dcm")).write_bytes(b"")  # one of a series that is known
    assert classified(place / "bundle", together, tmp_path / "out.json") == found


def classified(bundle, path, output):
    options = {"bundle_root": str(bundle), "input_path": str(path), "output_path": str(output)}
    workflow = ConfigWorkflow(
        config_file=str(bundle / "configs" / "inference.json"), workflow_type="inference", **options
    )
    workflow.initialize()
    workflow.run()
    [result] = json.loads(output.read_text())["results"]
    return list(result["probabilities"].values())
