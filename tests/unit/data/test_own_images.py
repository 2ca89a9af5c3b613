"""An npz file that is all one hospital's: what the job says, what the file must be, how it is divided."""

import numpy as np
import pytest
import torch

from medpfl.cli.options import Options
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.npz.site_file import OwnImages
from medpfl.data.sites import open_source

CPU = torch.device("cpu")
LOOK = {"classes": ["a", "b", "c"], "size": 8, "channels": "grey"}


def job(data="blood", **fields):
    fields = {"data_args": LOOK, "partition": "natural", "sites": 3, **fields}
    return make_config(algorithm="fedbn", data=data, **fields)


def rows(site, images):
    index = {image.tobytes(): i for i, image in enumerate(images)}
    return {part: [index[image.numpy().tobytes()] for image in site.images[part][:, 0]] for part in PARTS}


def test_the_whole_file_is_divided_by_the_fractions(write):
    source = open_source(job(), write())
    assert isinstance(source, OwnImages)
    found = rows(source.site("north", CPU), source.dataset.images)
    assert [len(found[part]) for part in PARTS] == [25, 5, 21]
    assert sorted(row for part in found.values() for row in part) == list(range(51))
    assert found == rows(open_source(job(), write()).site("north", CPU), source.dataset.images)
    assert found != rows(source.site("south", CPU), source.dataset.images)


def test_official_parts_are_kept(write):
    source = open_source(job(official=True), write())
    found = rows(source.site("north", CPU), source.dataset.images)
    assert {part: found[part] for part in PARTS} == {
        "train": list(range(30)),
        "validation": list(range(30, 39)),
        "test": list(range(39, 51)),
    }
    assert source.site("north", CPU).labels["test"].tolist() == source.dataset.labels[39:].tolist()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"classes": 4}, "mine.npz: has the label 3; the job 'blood' has 3 classes, 0 to 2: a, b, c"),
        ({"shape": (9, 9)}, "mine.npz: images of 9 pixels; the job 'blood' has 8"),
        ({"shape": (9, 8, 8)}, "mine.npz: has volumes; the job 'blood' has pictures with one label each"),
        ({"shape": (3, 8, 8)}, r"has volumes of 3 slices: .* with their channels first, \(n, H, H, 3\) is right"),
        ({"shape": (8, 8, 3)}, "mine.npz: colour images; the job 'blood' has grey ones"),
    ],
)
def test_a_file_that_is_not_as_the_job_says_is_named(write, sizes, said):
    with pytest.raises(UserError, match=said):
        open_source(job(), write(**sizes)).site("north", CPU)


def test_a_hospital_may_lack_a_class(write):
    assert open_source(job(), write(classes=2)).site("north", CPU).samples("train") == 25


def test_a_published_set_says_what_the_images_are(write, home):
    config = job("bloodmnist", data_args={"pad": 32})
    arguments = {"in_channels": 3, "num_classes": 8, "image_size": 32}
    assert open_source(config).model_arguments() == arguments
    site = open_source(config, write(classes=8, shape=(28, 28, 3))).site("north", CPU)
    assert site.images["train"].shape[1:] == (3, 32, 32)
    assert not site.images["train"][..., 0].any()


@pytest.mark.parametrize("official", [False, True])
def test_the_server_needs_no_images(home, official):
    source = open_source(job(official=official))
    assert source.model_arguments() == {"in_channels": 1, "num_classes": 3, "image_size": 8}
    assert source.describe()["classes"] == ["a", "b", "c"]
    assert source.describe()["sites"] == {}


def test_a_simulation_cannot_make_up_hospitals(home):
    with pytest.raises(UserError, match="each site has a file of its own"):
        open_source(job("bloodmnist", data_args={})).prepare()
    with pytest.raises(UserError, match="each site brings images of its own"):
        Options(data="bloodmnist", partition="natural").config("fedbn")


def test_the_command_line_says_it_with_commas(home):
    arguments = ["classes=a, b,c", "size=8", "channels=grey"]
    config = Options(data="blood", sites="north,south", data_args=arguments).config("fedbn")
    assert config.partition == "natural"
    assert config.site_names == ["north", "south"]
    assert open_source(config).model_arguments() == {"in_channels": 1, "num_classes": 3, "image_size": 8}


def test_a_file_that_is_here_takes_no_names(write):
    file = str(write())
    with pytest.raises(UserError, match=r"--data-arg classes: .*mine.npz is an npz file, whose labels are numbers"):
        Options(data=file, sites="2", data_args=["classes=a,b,c"]).config("fedbn")
    with pytest.raises(UserError, match="leave it out"):
        open_source(make_config(algorithm="fedbn", data=file, data_args=LOOK))


def test_a_simulations_file_is_found_where_the_site_says(write):
    config = make_config(algorithm="fedbn", data="blood", partition="iid", sites=2)
    source = open_source(config, write())
    np.testing.assert_array_equal(np.unique(source.dataset.labels), [0, 1, 2])
    assert source.site("site-1", CPU).samples("train") == 13
