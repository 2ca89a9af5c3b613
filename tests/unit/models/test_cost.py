"""A network's size and the cost of a pass are known before memory is taken for it."""

import resource

import pytest
import torch
from tiny import config
from torch import nn

from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.engine.first_model import require_affordable
from medpfl.models import build_model
from medpfl.models.cost import Limits, NetworkTooLarge, require_within
from medpfl.site.policy import HOSPITAL
from medpfl.site.words import UNKNOWN, listed
from medpfl.tasks import TASKS

ROOM = Limits(10**9, 10**12, 10**15)


def check(limits, name, shape=(2, 1, 28, 28), **model_args):
    def build():
        return build_model(name, in_channels=shape[1], num_classes=3, image_size=shape[2:], model_args=model_args)

    require_within(limits, model_args, build, shape)


def test_parameters_and_operations_are_exact():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(10, 20), nn.Linear(20, 3)

        def forward(self, x):
            return self.two(torch.relu(self.one(x)))

    numbers, multiplications = 10 * 20 + 20 + 20 * 3 + 3, 2 * 4 * (10 * 20 + 20 * 3)
    require_within(Limits(numbers, 0, multiplications), {}, Two, (4, 10))
    with pytest.raises(NetworkTooLarge, match="283 parameters or more, 282 is the limit"):
        require_within(Limits(numbers - 1), {}, Two, (4, 10))
    with pytest.raises(NetworkTooLarge, match=r"2\.08e\+03 operations or more"):
        require_within(Limits(0, 0, multiplications - 1), {}, Two, (4, 10))
    with pytest.raises(NetworkTooLarge, match="values or more, 60 is the limit"):
        require_within(Limits(0, 60), {}, Two, (4, 10))  # 80 behind the first layer alone


@pytest.mark.parametrize(
    ("name", "shape", "arguments"),
    [
        ("lenet5", (32, 1, 28, 28), {}),
        ("vit-tiny", (32, 1, 28, 28), {}),
        ("unet", (4, 1, 96, 96, 96), {}),
        # It reads the rates of its layers from a tensor.
        ("monai:SwinUNETR", (2, 1, 96, 96, 96), {"feature_size": 24}),
        pytest.param("monai:DenseNet121", (8, 1, 64, 64, 64), {}, marks=pytest.mark.slow),
        pytest.param("monai:UNETR", (2, 1, 96, 96, 96), {}, marks=pytest.mark.slow),
    ],
)
def test_what_hospitals_train_is_taken(name, shape, arguments):
    check(HOSPITAL.network, name, shape, **arguments)


SLOW = pytest.mark.slow
HUGE = [
    ("monai:UNet", {"channels": [40000, 80000], "strides": [2]}, "network_parameters"),
    ("monai:ViT", {"patch_size": 4, "mlp_dim": 99999, "hidden_size": 96000}, "network_parameters"),
    ("monai:DenseNet121", {"growth_rate": 60000, "init_features": 99999}, "network_parameters"),
    ("monai:UNet", {"spatial_dims": 10**12}, "a model argument is beyond 100000"),
    ("monai:resnet18", {"conv1_t_size": 10**9}, "a model argument is beyond 100000"),
    pytest.param("monai:ViT", {"patch_size": 4, "num_layers": 90000, "hidden_size": 12}, "measured", marks=SLOW),
    pytest.param("monai:UNet", {"channels": [1, 1], "strides": [2], "num_res_units": 90000}, "measured", marks=SLOW),
]


@pytest.mark.parametrize(("name", "arguments", "words"), HUGE)
def test_huge_arguments_are_refused_and_take_no_memory(name, arguments, words):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NetworkTooLarge, match=words) as refused:
        check(HOSPITAL.network, name, **arguments)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 2**10  # KiB
    assert listed(str(refused.value), ()) != UNKNOWN


def test_a_pass_that_makes_too_much_is_refused_where_the_network_is_small():
    require_within(HOSPITAL.network, {}, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 2)), (4, 1, 28, 28))
    with pytest.raises(NetworkTooLarge, match="network_values"):
        require_within(HOSPITAL.network, {}, lambda: nn.Upsample(scale_factor=9999), (4, 1, 28, 28))
    with pytest.raises(NetworkTooLarge, match="cannot be measured"):  # a size beyond 63 bits
        require_within(HOSPITAL.network, {}, lambda: nn.Upsample(scale_factor=1e12), (4, 1, 28, 28))


def test_what_needs_values_to_be_built_cannot_be_measured():
    def build():
        return nn.Linear(int(torch.ones(1).item()), 2)

    with pytest.raises(NetworkTooLarge, match="cannot be measured"):
        require_within(ROOM, {}, build, None)
    require_within(Limits(), {}, build, None)  # no limit, no question


def test_the_users_mistakes_stay_theirs():
    with pytest.raises(UserError, match="has no model argument") as refused:
        check(ROOM, "lenet5", wdith=3)
    assert not isinstance(refused.value, NetworkTooLarge)


def test_the_first_model_is_the_same_after_it_was_measured():
    run = config("fedavg")
    plain, limited = Federation.of(run), Federation.of(run, limits=ROOM)
    assert all(torch.equal(t, limited.initial_shared[name]) for name, t in plain.initial_shared.items())


def test_what_is_looked_at_counts_where_batches_of_training_are_small():
    """The largest tensor of one sample has 5 x 784 numbers: of 256 samples, and four held at a time, 4,014,080."""

    def five():
        return nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.Flatten(), nn.Linear(3920, 2))

    for batch in (1, 7):
        require_within(Limits(0, 4_014_080, 0), {}, five, (batch, 1, 28, 28), 256)
        with pytest.raises(NetworkTooLarge, match="network_values"):
            require_within(Limits(0, 4_014_079, 0), {}, five, (batch, 1, 28, 28), 256)
    job = config("fedavg", data="organamnist-sample", model="lenet5", settings={"batch_size": 1})
    with pytest.raises(NetworkTooLarge, match="network_values"):  # of one picture it makes some 10,000
        Federation.of(job, limits=Limits(0, 20_000, 0))


@pytest.mark.parametrize("shape", [(1, 224, 224), (3, 224, 224), (1, 512, 512)])
def test_usual_networks_are_within_a_hospitals_limits(shape):
    def build():
        return build_model("monai:resnet50", in_channels=shape[0], num_classes=3, image_size=shape[1:], model_args={})

    require_within(HOSPITAL.network, {}, build, (8, *shape), TASKS["classification"].looked_at_once(shape))


def test_bags_count_as_many_images_as_they_have():
    class Bags:
        def __init__(self, images):
            self.images_per_sample = images

        def model_arguments(self):
            return {"in_channels": 1, "num_classes": 2, "image_size": 28}

    job = config("fedavg", model="lenet5", pooling="attention", settings={"batch_size": 100})
    limits = Limits(0, 100 * 50_000, 0)  # an image makes some 10,000
    require_affordable(job, Bags(1), limits)
    with pytest.raises(NetworkTooLarge, match="network_values"):
        require_affordable(job, Bags(16), limits)


@pytest.mark.parametrize(
    ("task", "image", "images", "batch"),
    [
        ("classification", (3, 64, 64), 1, 256),
        ("classification", (1, 1024, 1024), 1, 8),
        ("classification", (1, 64, 64), 16, 16),  # of bags
        ("classification", (1, 8, 8), 300, 1),
        ("classification", (3, 4096, 4096), 1, 1),
        ("segmentation", (1, 64, 64), 1, 256),  # of which statistics are taken; 64 are judged
        ("segmentation", (1, 1024, 1024), 1, 8),
        ("segmentation", (1, 32, 32, 32), 1, 256),
        ("segmentation", (1, 256, 256, 256), 1, 4),
    ],
)
def test_how_many_are_looked_at_once(task, image, images, batch):
    assert TASKS[task].looked_at_once(image, images) == batch


def test_large_batches_count():
    with pytest.raises(NetworkTooLarge, match="network_values"):
        Federation.of(
            config("fedavg", data="organamnist-sample", model="lenet5", settings={"batch_size": 10**9}),
            limits=HOSPITAL.network,
        )
