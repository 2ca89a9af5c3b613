from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from masked import config as masks_config
from masked import write_volumes

from medpfl.config.run import make_config
from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.permitted_code import permit
from medpfl.core.site_data import PARTS, ImageTensors, SiteLoaders
from medpfl.data.kinds.function.own_data import OwnData
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.data.sites import open_source, task_for
from medpfl.engine.federation import Federation

CPU = torch.device("cpu")


def loaders(site, seed):
    return SiteLoaders([(torch.zeros(2, 1, 4, 4), torch.zeros(2))])


def test_data_of_a_site_that_are_gone_are_named_whatever_the_job_says(tmp_path):
    asked = make_config(algorithm="fedavg", data="chest-ct", sites=2, data_args={"slices": 8}, partition="natural")
    with pytest.raises(UserError, match="away: the site's data are not there: moved, renamed, or a drive that is not"):
        open_source(asked, tmp_path / "away").model_arguments()


def nothing(site, seed):
    pass


def test_a_function_that_returns_something_else_is_named():
    source = OwnData(make_config(algorithm="fedavg", data="test_sites:nothing", sites=2))
    with pytest.raises(UserError, match=r"test_sites:nothing returned NoneType for site-1: it must be SiteLoaders"):
        source.site("site-1", CPU)


def volumes(data):
    images = {part: list(x) for part, x in data.images.items()}
    return MaskedVolumes(images, {part: [x[0].bool().byte() for x in of] for part, of in images.items()}, (1, 4, 4))


def masked(data):
    return MaskedImages(data.images, {part: x[:, 0].to(torch.uint8) for part, x in data.images.items()})


def changed(site, seed, *, change):
    data = tiny.images()
    test = {"test": torch.tensor([900, 900, 5, 5, 5, 70, 70])}
    match change:
        case "patients":
            data.labels["test"] = torch.tensor([0, 0, 1, 1, 1, 2, 2])
            return replace(data, patients=test)
        case "nobody in validation":
            for of in (data.images, data.labels):
                of["validation"] = of["validation"][:0]
            return replace(data, patients=test | {"validation": torch.zeros(0, dtype=torch.int64)})
        case "two labels":
            data.labels["test"] = torch.tensor([0, 0, 1, 1, 2, 2, 2])
            return replace(data, patients=test)
        case "a column of int32":
            data.labels.update({part: of[:, None].int() for part, of in data.labels.items()})
        case "arrays" | "volumes of arrays":
            made = volumes(data) if change.startswith("volumes") else data
            made.images["train"] = [image.numpy() for image in made.images["train"]]
            return made
        case "named patients":
            return replace(data, patients={"test": ["a", "a", "b", "b", "b", "c", "c"]})
        case "listed labels":
            data.labels["test"] = data.labels["test"].tolist()
        case "few labels":
            data.labels["train"] = data.labels["train"][:8]
        case "no validation":
            del data.images["validation"]
        case "floats":
            data.labels["test"] = data.labels["test"].float()
        case "two columns":
            data.labels["train"] = torch.zeros(len(data.images["train"]), 2, dtype=torch.int64)
        case "no numbers" | "masks of no numbers":
            found = masked(data) if change.startswith("masks") else data
            data.images["test"] = data.images["test"].float()
            data.images["test"][2, 0, 0, 0] = float("nan")
            return found
        case "short" | "masks of short images" | "volumes of short images":
            data.images["train"] = data.images["train"].short()
            made = {"masks": masked, "volumes": volumes}.get(change.partition(" ")[0])
            return made(data) if made else data
        case "loaders":
            return loaders(site, seed)
        case "masks":
            return masked(data)
        case "masked patients" | "scattered" | "few masked patients" | "few spacings":
            numbers = [900, 900, 5, 5, 5, 70, 70]
            if change == "scattered":
                numbers[-1] = 5
            found = {"test": torch.tensor(numbers[: 3 if change.startswith("few masked") else None])}
            spacings = {"test": [(1.0, 1.0, 1.0)] * 2} if change == "few spacings" else {}
            return replace(masked(data), patients=found, spacings=spacings)
        case "few volumes' spacings":
            return replace(volumes(data), spacings={"test": [(1.0, 1.0, 1.0)]})
        case "few volumes' persons":
            return replace(volumes(data), persons={"test": torch.tensor([1])})
        case "no test masks":
            found = masked(data)
            del found.labels["test"]
            return found
        case "few patients":
            return replace(data, patients={"test": torch.zeros(3, dtype=torch.int64)})
    return data


def of_changed(change):
    fields = {"data": "test_sites:changed", "data_args": {"change": change}, "sites": 2}
    return OwnData(make_config(algorithm="fedavg", **fields)).site("site-1", CPU)


def masks_of_changed(change):
    fields = {"data": "test_sites:changed", "data_args": {"change": change}, "sites": 2, "task": "segmentation"}
    return OwnData(make_config(algorithm="fedavg", **fields)).site("site-1", CPU)


def test_patients_of_ones_own_images_may_have_any_numbers():
    """Numbers without a patient counted as wrong cases, whose measures nobody knew."""
    data = of_changed("patients")
    assert data.bags("test").tolist() == [2, 2, 0, 0, 0, 1, 1]
    assert torch.equal(data.owners("test"), data.bags("test"))
    assert of_changed("nobody in validation").bags("validation").tolist() == []
    several = of_changed("two labels")
    assert several.bags("test").tolist() == [3, 3, 0, 0, 1, 2, 2]
    assert several.owners("test").tolist() == [900, 900, 5, 5, 5, 70, 70]


def test_labels_of_ones_own_images_may_be_a_column():
    data, plain = of_changed("a column of int32"), tiny.images()
    assert all(torch.equal(data.labels[part], plain.labels[part]) for part in PARTS)
    assert data.labels["train"].dtype == torch.int64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("few labels", "site-1: train: 8 labels, and 13 images; one each is needed"),
        ("no validation", "site-1: ImageTensors has no validation images and labels; no cases are empty tensors"),
        ("floats", "site-1: test: labels are float32; whole numbers, the classes, are needed"),
        ("few patients", "site-1: test: 3 patients, and 7 images; one each is needed"),
        (
            "two columns",
            r"site-1: train: labels are \[13, 2\], and classification has one class a case, \(13,\); several",
        ),
        ("short", r"site-1: train: images are int16; uint8, 0 to 255, or floating point in \[-1, 1\] is needed"),
        ("arrays", "site-1: train: images are of type list; a tensor is needed, as torch.as_tensor makes it"),
        ("named patients", "site-1: test: patients are of type list; a tensor is needed"),
        ("listed labels", "site-1: test: labels are of type list; a tensor is needed"),
        ("masks", "site-1: MaskedImages has masks, and classification takes none: say --task segmentation"),
        ("no numbers", r"site-1: test: images have values that are no numbers \(NaN or infinite\)"),
    ],
)
def test_what_ones_own_images_lack_is_said(change, words):
    with pytest.raises(UserError, match=words):
        of_changed(change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("", "ImageTensors has one label or several a case; segmentation takes MaskedImages or MaskedVolumes"),
        ("loaders", "SiteLoaders has one label or several a case; segmentation takes MaskedImages or MaskedVolumes"),
        ("no test masks", "site-1: MaskedImages has no test images and masks; no cases are empty"),
        ("masks of short images", r"site-1: train: images are int16; uint8, 0 to 255, or floating point in"),
        ("scattered", "site-1: test: slices of patient 5 do not lie together; order images by patient"),
        ("few masked patients", "site-1: test: 3 patients, and 7 images; one each is needed"),
        ("few spacings", "site-1: test: 2 spacings, and 3 cases; one each is needed"),
        ("few volumes' spacings", "site-1: test: 1 spacings, and 7 cases; one each is needed"),
        ("few volumes' persons", "site-1: test: 1 persons, and 7 volumes; one each is needed"),
        ("volumes of arrays", "site-1: train: images are of type ndarray; a tensor is needed"),
        ("masks of no numbers", r"site-1: test: images have values that are no numbers \(NaN or infinite\)"),
        ("volumes of short images", r"site-1: train: images are int16; uint8, 0 to 255, or floating point in"),
    ],
)
def test_one_label_an_image_is_no_mask(change, words):
    with pytest.raises(UserError, match=words):
        masks_of_changed(change)


def test_patients_of_ones_own_masks_may_have_any_numbers():
    data = masks_of_changed("masked patients")
    assert data.bags("test").tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert [len(case.images) for case in data.cases("test")] == [2, 3, 2]


@pytest.fixture(scope="module")
def source():
    return open_source(make_config(algorithm="fedavg", sites=4, partition="equal-dirichlet:0.5", seed=3))


def found(images, among):
    """Indices of the images in the data set, which has no image twice."""
    index = {image.tobytes(): i for i, image in enumerate(among)}
    return [index[image.numpy().tobytes()] for image in images[:, 0]]


def test_sites_hold_the_partitions_images_and_share_none(source):
    assert isinstance(source, PartitionedImages)
    seen = []
    for indices in source.partition.sites:
        data = source.site(indices.name, CPU)
        assert isinstance(data, ImageTensors)
        for part in PARTS:
            rows = getattr(indices, part)
            assert data.images[part].shape == (len(rows), 1, 28, 28)
            assert data.images[part].dtype == torch.uint8
            np.testing.assert_array_equal(data.images[part][:, 0], source.dataset.images[rows])
            np.testing.assert_array_equal(data.labels[part], source.dataset.labels[rows])
            seen.extend(rows)
    assert len(set(seen)) == len(seen)


def test_the_same_configuration_gives_the_same_sites(source):
    again = open_source(source.config)
    for part in PARTS:
        assert torch.equal(again.site("site-2", CPU).images[part], source.site("site-2", CPU).images[part])
    other = open_source(source.config.model_copy(update={"seed": 4}))
    assert not torch.equal(other.site("site-2", CPU).labels["test"], source.site("site-2", CPU).labels["test"])


def test_a_share_of_the_training_images_pooled(source):
    training = np.concatenate([s.train for s in source.partition.sites])
    pooled = source.pooled_training(0.2, CPU)
    assert [pooled.samples(part) for part in PARTS] == [round(0.2 * len(training)), 0, 0]
    chosen = {image.tobytes() for image in pooled.images["train"].numpy()[:, 0]}
    assert chosen <= {image.tobytes() for image in source.dataset.images[training]}
    held_back = np.concatenate([np.concatenate([s.validation, s.test]) for s in source.partition.sites])
    twins = {image.tobytes() for image in source.dataset.images[training]}
    assert not chosen & ({image.tobytes() for image in source.dataset.images[held_back]} - twins)
    assert torch.equal(source.pooled_training(0.2, CPU).labels["train"], pooled.labels["train"])


def test_the_models_arguments_come_from_the_data(source):
    assert source.model_arguments() == {"in_channels": 1, "num_classes": 11, "image_size": 28}


def test_description(source):
    described = source.describe()
    assert described["name"] == "organamnist-sample"
    assert described["partition"] == "equal-dirichlet:0.5"
    assert len(described["classes"]) == 11
    for indices in source.partition.sites:
        site = described["sites"][indices.name]
        assert [site[part] for part in PARTS] == [len(getattr(indices, part)) for part in PARTS]
        assert sum(site["classes"].values()) == sum(site[part] for part in PARTS)


def test_a_fraction_of_the_training_images(source):
    few = open_source(source.config.model_copy(update={"train_fraction": 0.1}))
    for a, b in zip(few.partition.sites, source.partition.sites, strict=True):
        assert set(a.train) < set(b.train)
        assert len(a.train) == pytest.approx(0.1 * len(b.train), abs=1)
        np.testing.assert_array_equal(a.test, b.test)


def test_an_unknown_site(source):
    with pytest.raises(UserError, match="no site 'site-9': it has site-1, site-2, site-3, site-4"):
        source.site("site-9", CPU)


def test_data_of_the_users_own():
    source = open_source(tiny.config(data_args={"train": 6}, seed=2))
    assert isinstance(source, OwnData)
    assert source.model_arguments() == {}
    expected = tiny.site_data("site-2", 2, train=6)
    assert torch.equal(source.site("site-2", CPU).images["train"], expected.images["train"])
    assert source.describe()["name"] == "tiny:site_data"


def test_whose_samples_are_goes_where_they_go(monkeypatch):
    made = tiny.site_data("site-1", 0, train=6)
    whose = {part: torch.arange(len(labels)) for part, labels in made.labels.items()}
    made = replace(made, patients=whose, persons=whose)
    monkeypatch.setattr(OwnData, "function", lambda self, **said: made)
    data = open_source(tiny.config()).site("site-1", torch.device("meta"))
    for found in (data.images, data.labels, data.patients, data.persons):
        assert {tensor.device.type for tensor in found.values()} == {"meta"}


def test_loaders_of_the_users_own():
    data = open_source(tiny.config(data="test_sites:loaders")).site("site-1", CPU)
    assert isinstance(data, SiteLoaders)
    assert (data.device, data.reproducible) == (CPU, False)


def reaching(site, seed, *, kind, most):
    image, none = torch.full((2, 1, 4, 4), most), torch.zeros(0, 1, 4, 4)
    labels = torch.zeros(2, dtype=torch.long)
    if kind == "loaders":
        return SiteLoaders([(image, labels)] * 3, [(image, labels)], [(image, labels)])
    each = {"train": image, "validation": none, "test": none}
    if kind == "images":
        return ImageTensors(each, {part: torch.zeros(len(of), dtype=torch.long) for part, of in each.items()})
    masks = {part: torch.zeros(len(of), 4, 4, dtype=torch.uint8) for part, of in each.items()}
    return MaskedImages(each, masks)


@pytest.mark.parametrize(("most", "told"), [(30.0, 0), (-1024.0, 1)])
@pytest.mark.parametrize("kind", ["loaders", "images", "masks"])
def test_pixels_that_nobody_scaled_are_said_once(kind, most, told, caplog):
    task = "segmentation" if kind == "masks" else "classification"
    fields = {"data": f"{__name__}:reaching", "sites": 2, "task": task, "data_args": {"kind": kind, "most": most}}
    site = open_source(make_config(algorithm="fedavg", **fields)).site("site-1", CPU)
    for _ in range(2):
        list(site.batches("train", 2))
    assert caplog.text.count("networks train well on values about -1 to 1: scale them") == told


def test_own_data_cannot_be_pooled():
    with pytest.raises(NotInOnePlace, match="sites' own data cannot be pooled"):
        open_source(tiny.config("fedap")).pooled_training(0.2, CPU)
    with pytest.raises(UserError, match=r"cannot be pooled to pretrain f: give a checkpoint \(.*\) or use f-fedap"):
        Federation.of(tiny.config("fedap")).plan()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("subprocess:run", "data 'subprocess:run': code of 'subprocess', which nobody here has permitted"),
        ("tiny:contextmanager", "data 'tiny:contextmanager': it is contextlib's, which 'tiny' only imports"),
        ("tiny.py:site_data", "data 'tiny.py:site_data': give the module, not its file: tiny:site_data"),
        ("no_such_package:f", "data 'no_such_package:f': no module 'no_such_package' can be imported"),
        ("tiny:no_such_name", "data 'tiny:no_such_name': module 'tiny' has no 'no_such_name'"),
    ],
)
def test_names_that_lead_nowhere(spec, message):
    permit("no_such_package")
    with pytest.raises(UserError, match=message):
        open_source(tiny.config(data=spec)).site("site-1", CPU)


@pytest.mark.parametrize("path", ["/data/a:b.npz", "./a:b", r"C:\data\a.npz"])
def test_paths_are_no_functions(path):
    assert isinstance(open_source(tiny.config(data=path)), PartitionedImages)


def test_named_sites_are_the_partitions_in_order(source, tmp_path):
    names = ("north", "south", "east", "west")
    named = open_source(source.config.model_copy(update={"names": names, "held_out": 0}))
    assert [site.name for site in named.partition.sites] == list(names)
    for number, name in enumerate(names, start=1):
        assert torch.equal(named.site(name, CPU).labels["test"], source.site(f"site-{number}", CPU).labels["test"])
    assert list(named.describe()["sites"]) == list(names)
    assert torch.equal(
        named.pooled_training(0.1, CPU).images["train"], source.pooled_training(0.1, CPU).images["train"]
    )
    named.partition.save(tmp_path / "parts.json")
    again = open_source(named.config.model_copy(update={"partition": f"file:{tmp_path / 'parts.json'}"}))
    assert torch.equal(again.site("south", CPU).labels["test"], named.site("south", CPU).labels["test"])
    other = again.config.model_copy(update={"names": ("a", "b", "c", "d")})
    with pytest.raises(UserError, match="must be named site-1 to site-4, not 'east'"):
        open_source(other).prepare()


def test_centres_that_are_held_out_keep_their_usual_names(source):
    config = source.config.model_copy(update={"sites": 3, "names": ("north", "south", "east"), "held_out": 1})
    named = open_source(config)
    assert list(named.held_out(CPU)) == ["site-4"]
    with pytest.raises(UserError, match="held out has one of these names"):
        open_source(config.model_copy(update={"names": ("north", "south", "site-4")})).prepare()


def test_a_task_that_the_data_have_no_labels_for():
    config = make_config(algorithm="fedavg", data="sarcoma-sample", sites=3)
    with pytest.raises(UserError, match="--task classification: sarcoma-sample has masks; it is for segmentation"):
        open_source(config)


@pytest.mark.parametrize("data_args", [{}, {"classes": "background,tumour"}])
def test_masks_that_are_not_here_need_words_of_what_they_are(data_args):
    with pytest.raises(UserError, match=r"--task segmentation: brain is not here.*dims=2.* or dims=3"):
        task_for("brain", data_args, "segmentation")
    assert task_for("brain", {"classes": "background,tumour", "dims": 2}, "segmentation") == "segmentation"
    with pytest.raises(UserError, match="--task segmentation: bloodmnist has one class an image"):
        task_for("bloodmnist", {}, "segmentation")


def test_a_holdout_of_what_nothing_is_set_aside_of_is_refused(tmp_path):
    volumes = masks_config(write_volumes(tmp_path / "mr"), holdout=0.1)
    for run, words in ((volumes, "images with masks"), (tiny.config(holdout=0.1), "data that a function reads")):
        with pytest.raises(UserError, match=f"--holdout 0.1: of {words} nothing is set aside; leave it out"):
            open_source(run)
