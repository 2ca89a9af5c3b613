"""What a federated impression starts from: images set aside, noise, public images; and what is wrong with some."""

import numpy as np
import pytest
import torch
from PIL import Image

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.start_images import noise, start_images
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.public_images import fitted, public_images
from medpfl.data.sites import open_source
from medpfl.engine.federation import Federation

FIELDS = {"model": "lenet5", "sites": 2, "rounds": 3, "local_epochs": 1, "train_fraction": 0.05, "device": "cpu"}


def source_of(start="noise", images=6, **fields):
    settings = {"warmup": 1, "images": images, "start": start}
    return open_source(make_config(algorithm="fedimpres", settings=settings, **FIELDS, **fields))


def test_holdout_images_belong_to_no_site():
    source = source_of("holdout", 50, holdout=0.1)
    start = start_images(ImpressionSettings(start="holdout", images=50), source, public_images, source.config.seed)
    assert start.shape == (50, 1, 28, 28)
    used = np.concatenate([np.concatenate([s.train, s.validation, s.test]) for s in source.partition.sites])
    assert not set(used) & set(source.partition.holdout)
    assert -1 <= start.min() < start.max() <= 1


def test_a_holdout_of_no_image_ends_the_run_before_its_first_round():
    settings = {"warmup": 1, "images": 6, "start": "holdout"}
    run = make_config(algorithm="fedimpres", settings=settings, holdout=1e-6, **FIELDS)
    with pytest.raises(UserError, match="start=holdout: --holdout 1e-06: too small a share, no image is set aside"):
        Federation.of(run).plan()


def test_padding_keeps_the_image_in_the_middle():
    source = source_of(data_args={"pad": 32})
    assert source.model_arguments()["image_size"] == 32
    image = source.site("site-1", torch.device("cpu")).images["train"][0, 0]
    assert image.shape == (32, 32)
    assert not image[:2].any()
    assert image[2:30, 2:30].any()
    with pytest.raises(UserError, match="pad=20: images of 28 pixels"):
        source_of(data_args={"pad": 20}).model_arguments()


def test_noise_and_public_images(tmp_path):
    assert torch.equal(noise(4, (3, 8, 8), 1), noise(4, (3, 8, 8), 1))
    for number in range(5):
        Image.new("RGB", (10, 12), (50 * number, 0, 0)).save(tmp_path / f"{number}.png")
    images = public_images(tmp_path, 3, (1, 8, 8), np.random.default_rng(0))
    assert images.shape == (3, 1, 8, 8)
    assert public_images(tmp_path, 99, (3, 10, 10), np.random.default_rng(0)).shape == (5, 3, 10, 10)
    assert fitted(torch.zeros(2, 3, 4, 4), (1, 8, 8)).shape == (2, 1, 8, 8)


def test_a_broken_or_missing_start_is_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken\.png: cannot be read"):
        public_images(tmp_path, 3, (1, 8, 8), np.random.default_rng(0))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no image"):
        public_images(tmp_path / "empty", 3, (1, 8, 8), np.random.default_rng(0))
    source = source_of("nowhere")
    with pytest.raises(UserError, match="use noise, holdout, held-out, or the path"):
        start_images(ImpressionSettings(start="nowhere"), source, public_images, source.config.seed)


def test_a_broken_image_matters_only_if_it_is_drawn(tmp_path):
    for number in range(4):
        Image.effect_noise((40, 40), 50).save(tmp_path / f"{number}.jpg")
    broken = tmp_path / "2.jpg"
    broken.write_bytes(broken.read_bytes()[:500])  # the header is whole
    said = set()
    for seed in range(20):
        try:
            said.add(len(public_images(tmp_path, 2, (3, 8, 8), np.random.default_rng(seed))))
        except UserError as error:
            said.add(str(error).partition(" (")[0])
    assert said == {2, f"{broken}: cannot be read"}
