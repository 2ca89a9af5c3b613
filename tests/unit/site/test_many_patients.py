"""What leaves rests on many patients, whatever a job says: of how many, of which class, of which steps and images."""

from dataclasses import replace

import pytest
import torch
from monai.networks.layers import DropPath
from monai.networks.nets import FullyConnectedNet
from test_guard import Guarded
from tiny import Net, config, images
from torch import nn

from medpfl.core.masked_data import MaskedVolumes
from medpfl.core.parameters import StateError
from medpfl.core.site_data import SiteLoaders
from medpfl.models import build_model
from medpfl.site.contents import contents, showing
from medpfl.site.contract import Contract
from medpfl.site.many_patients import patients, require_many, require_usual, taught
from medpfl.site.policy import HOSPITAL, SitePolicy
from medpfl.site.words import listed


def test_patients_count_and_not_their_slices():
    data = images(train=6)
    assert patients(data) == 6
    assert (
        patients(replace(data, patients={p: torch.zeros(data.samples(p), dtype=torch.long) for p in data.labels})) == 1
    )
    assert patients(images(train=0)) == 0
    eyes = {part: torch.arange(data.samples(part)) // 2 for part in data.labels}
    assert patients(replace(data, persons=eyes)) == 3


def test_in_a_loss_of_several_labels_patients_count_by_those_that_are_known():
    """It was told where 13 trained, of whom one had a label: that one's."""
    single = config("local")
    several = single.model_copy(update={"task": "multi-label"})
    data = images(train=13)
    labels = torch.full((13, 2), -1)
    for known, patients_ in [((), 0), ((4,), 1), (range(13), 13)]:
        labels[list(known)] = 1
        of_labels = replace(data, labels={**data.labels, "train": labels})
        assert taught(several, of_labels) == patients_
    pairs = {**{part: torch.arange(data.samples(part)) for part in data.labels}, "train": torch.arange(13) // 2}
    assert taught(several, replace(of_labels, persons=pairs)) == 6  # 26 labels, four of one
    assert taught(several, images(train=0)) == 0
    assert taught(single, data) == 13


@pytest.mark.parametrize(("algorithm", "leaves"), [("fedbn", True), ("fedap", True), ("local", False)])
def test_few_patients_send_no_update(algorithm, leaves):
    guarded = Guarded(algorithm, policy=SitePolicy(least_patients=14))
    assert patients(guarded.site.data) == 13
    if not leaves:  # nothing but numbers leaves
        guarded.hello()
        return
    words = guarded.refused("prepare")
    assert words == "policy: no update or statistics of fewer than 14 training patients leave (least_patients)"
    unasked = Guarded(algorithm).hello()
    unasked.site.policy = guarded.site.policy
    assert "least_patients" in unasked.refused("train", 1)


@pytest.mark.parametrize(("permitted", "taken"), [((), False), (("^([^_]+)_",), True), (None, True)])
def test_a_job_decides_nowhere_what_counts_as_a_patient(permitted, taken):
    """By ``(.*)`` each slice of one patient would be a patient, and an update of that one alone would leave."""
    guarded = Guarded(policy=SitePolicy(least_patients=2, patient_patterns=permitted))
    said = guarded.federation.config.model_copy(update={"data_args": {"patient": "^([^_]+)_"}})
    guarded.site.contract = Contract(said)
    if taken:
        guarded.hello()
    else:
        assert guarded.refused("prepare").startswith("policy: whose an image is, is not the job's to say here")


def test_an_update_of_the_last_steps_alone_does_not_leave():
    """By lr times weight_decay near 1 each step wipes out those before it, and the update is the last patient's."""
    settings = {"lr": 0.5, "weight_decay": 1.9}
    assert Guarded(settings=settings, policy=SitePolicy(least_patients=2)).refused("prepare") == (
        "policy: lr times weight_decay and mu is 0.01 at most here: updates would be of the last steps alone "
        "(least_patients)"
    )
    Guarded(settings=settings).hello()
    Guarded("local", settings=settings, policy=SitePolicy(least_patients=2)).hello()  # sends none
    Guarded(settings=settings | {"weight_decay": 0.02}, policy=SitePolicy(least_patients=2)).hello()


BALANCED = (
    "policy: of one class there are fewer than {} training patients, and what tells it from others would rest on these "
    "(least_patients)"
)


@pytest.mark.parametrize("setting", ["class_weights", "sampling"])
def test_balanced_classes_rest_on_no_few_patients(setting):
    """Of 13 samples 5, 4 and 4 are of a class: balanced, one of 1 would weigh as much as all others' together."""
    balanced = {setting: "balanced"}
    assert Guarded(settings=balanced, policy=SitePolicy(least_patients=5)).refused("prepare") == BALANCED.format(5)
    assert listed(BALANCED.format(5), set()) == BALANCED.format(5)
    Guarded(settings=balanced, policy=SitePolicy(least_patients=4)).hello()
    Guarded(policy=SitePolicy(least_patients=5)).hello()
    Guarded("local", settings=balanced, policy=SitePolicy(least_patients=5)).hello()  # sends none


def test_of_a_class_patients_count_and_not_their_images():
    guarded = Guarded(settings={"class_weights": "balanced"})
    contract, two = Contract(guarded.federation.config), SitePolicy(least_patients=2)
    data = images(train=12)  # four of each class
    require_many(two, contract, data)
    of_class = {"train": data.labels["train"] + 3 * (torch.arange(12) >= 6)}  # each class has two patients
    require_many(two, contract, replace(data, persons=of_class))
    of_class["train"] = torch.where(of_class["train"] == 4, 1, of_class["train"])
    with pytest.raises(Exception, match="of one class there are fewer than 2 training patients"):
        require_many(two, contract, replace(data, persons=of_class))


def test_a_jobs_own_list_of_transforms_blanks_no_patients_at_a_hospital():
    own = {
        "transforms": [
            {
                "_target_": "RandCoarseDropoutd",
                "keys": "image",
                "holes": 1,
                "spatial_size": 4,
                "fill_value": 0,
                "prob": 1.0,
            }
        ]
    }
    few = HOSPITAL.model_copy(update={"least_patients": 2})
    words = (
        "policy: training images are changed by presets alone here, not by a list of the job's own (own_augmentation)"
    )
    assert Guarded(augment=own, policy=few).refused("prepare") == words == listed(words, set())
    Guarded(augment=own, policy=few.model_copy(update={"own_augmentation": True})).hello()
    Guarded(augment="light", policy=few).hello()
    Guarded("local", augment=own, policy=few).hello()  # sends none


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.01, "mu": 100.0}, "lr times weight_decay and mu is 0.01 at most here"),
        ({"lr": 0.1, "mu": 0.05, "weight_decay": 0.08}, "lr times weight_decay and mu is 0.01 at most here"),
        ({"lr": 1e-34, "momentum": 5.0}, "momentum and beta1 are 0.99 at most here"),
        ({"optimizer": "adam", "beta1": 0.9999}, "momentum and beta1 are 0.99 at most here"),
        ({"optimizer": "radam"}, "optimizer is one of sgd, adam, adamw, rmsprop, adagrad here"),
        ({"lr": 1e6}, "lr is 1 at most here, of this optimizer"),
        ({"lr": 0.5, "optimizer": "adam"}, "lr is 0.1 at most here, of this optimizer"),
        ({"optimizer": "adam", "beta2": 0.5}, "beta2 and square_decay are 0.9 at least here"),
        ({"optimizer": "adam", "lr": 1e-4, "mu": 99.9, "eps": 0.01}, "mu goes with optimizer=sgd here"),
        ({"optimizer": "rmsprop", "lr": 1e-4, "weight_decay": 0.1}, "mu goes with optimizer=sgd here"),
        ({"optimizer": "rmsprop", "square_decay": 0.1}, "beta2 and square_decay are 0.9 at least here"),
        ({"batch_size": 1, "accumulate": 9}, "by batch_size and accumulate the last step of an epoch is of few"),
        ({"batch_size": 1, "accumulate": 12}, "by batch_size and accumulate the last step of an epoch is of few"),
        ({"prior": 1.0}, "of one class there are fewer than 10 training patients"),
    ],
)
def test_settings_by_which_few_samples_are_the_update(settings, words):
    """Of 13 samples 5, 4 and 4 are of a class."""
    ten = SitePolicy(least_patients=10)
    said = Guarded(settings=settings, policy=ten).refused("prepare")
    assert said.startswith(f"policy: {words}") and listed(said, set()) == said
    Guarded(settings=settings).hello()
    Guarded("local", settings={k: v for k, v in settings.items() if k not in ("mu", "prior")}, policy=ten).hello()


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "weight_decay": 0.01},
        {"lr": 0.01, "mu": 1.0, "weight_decay": 1e-4},
        {"lr": 0.1, "weight_decay": 0.1},
        {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.05},
        {"optimizer": "rmsprop", "lr": 0.001, "square_decay": 0.95, "momentum": 0.9},
        {"batch_size": 1, "accumulate": 8},
        *({"batch_size": size} for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 32)),
    ],
)
def test_settings_as_people_train_with_are_taken(settings):
    Guarded(settings=settings, policy=SitePolicy(least_patients=10, own_seed=True)).hello()


def test_a_last_step_of_as_many_as_must_be_is_taken_however_long_the_others_are():
    """Of 13 samples in batches of 10."""
    Guarded(settings={"batch_size": 10}, policy=SitePolicy(least_patients=3, own_seed=False)).hello()
    said = Guarded(settings={"batch_size": 10}, policy=SitePolicy(least_patients=4, own_seed=False)).refused("prepare")
    assert said.startswith("policy: by batch_size and accumulate the last step of an epoch is of few")


def narrow(layers, dropout, width=1, pixels=8):
    """A chain of narrow layers, of which each drops."""
    hidden = {"in_channels": pixels, "out_channels": 2, "hidden_channels": [32, *[width] * layers], "dropout": dropout}
    return FullyConnectedNet(**hidden)


def connected():
    dropping = {"blocks_args_str": ["r2_k3_s11_e1_i8_o8_se1"], "spatial_dims": 2, "drop_connect_rate": 0.999}
    return build_model("monai:EfficientNet", in_channels=1, num_classes=2, image_size=32, model_args=dropping)


class Odd(Net):
    def __init__(self, momentum=0.1, dropout=0.0):
        super().__init__(dropout=dropout)
        self.norm.momentum = momentum


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Odd(dropout=0.9), "dropout is 0.5 at most here"),
        (Odd(momentum=1.0), "batch norm's momentum is 0 to 0.1 here"),
        (Odd(momentum=-5.0), "batch norm's momentum is 0 to 0.1 here"),
        (connected(), "dropout is 0.5 at most here"),
        (nn.MultiheadAttention(8, 2, dropout=0.9), "dropout is 0.5 at most here"),
        (DropPath(0.9), "dropout is 0.5 at most here"),
        (narrow(7, 0.5), "narrow layers drop all units of most samples"),
        (narrow(1, 0.0, pixels=784), "the network begins with a fully connected layer"),
    ],
)
def test_networks_by_which_few_samples_are_the_update(network, words):
    with pytest.raises(StateError, match=words) as refused:
        require_usual(SitePolicy(least_patients=2), network)
    assert listed(str(refused.value), set()) == str(refused.value)
    require_usual(SitePolicy(), network)


def test_networks_as_people_build_them_are_taken():
    taken = narrow(7, 0.05), narrow(7, 0.5, width=8)
    for network in (
        *taken,
        Odd(dropout=0.5),
        Odd(momentum=None),
        nn.MultiheadAttention(8, 2, dropout=0.1),
        DropPath(0.2),
    ):
        require_usual(HOSPITAL, network)
    ten = SitePolicy(least_patients=10)
    assert Guarded(model_args={"dropout": 0.9}, policy=ten).refused("prepare").startswith("policy: dropout is 0.5")


@pytest.mark.parametrize("fields", [{"data_args": {"folders": "sites"}}, {"held_out": 2}])
def test_a_job_does_not_choose_among_a_sites_folders(fields):
    guarded = Guarded(policy=SitePolicy(least_patients=2, patient_patterns=()))
    guarded.site.contract = Contract(guarded.federation.config.model_copy(update=fields))
    said = guarded.refused("prepare")
    assert said == "policy: which folders are sites, is not the job's to say here (folders=sites, held_out)"
    assert listed(said, set()) == said
    guarded.site.policy = SitePolicy(least_patients=2)
    guarded.hello()
    guarded = Guarded(policy=SitePolicy(least_patients=2, patient_patterns=()))
    guarded.site.contract = Contract(
        guarded.federation.config.model_copy(update={"data_args": {"folders": "patients"}})
    )
    guarded.hello()


def test_patients_whose_images_show_nothing_do_not_count():
    """As by a window in which all but metal is black."""
    contract = Contract(Guarded().federation.config)
    data = images(train=12)
    for part in data.images:
        data.images[part][9:] = 7
    require_many(SitePolicy(least_patients=9), contract, data)
    with pytest.raises(StateError, match="the images of fewer than 10 training patients show anything") as refused:
        require_many(SitePolicy(least_patients=10), contract, data)
    assert listed(str(refused.value), set()) == str(refused.value)
    twos = replace(data, persons={"train": torch.arange(12) // 2})  # the fifth has an image that shows something
    assert showing(twos) == 5
    volumes = [torch.rand(1, 4, 4, 4), torch.ones(1, 4, 4, 4)]
    masks = [torch.zeros(4, 4, 4, dtype=torch.uint8)] * 2
    assert showing(MaskedVolumes({"train": volumes}, {"train": masks}, (4, 4, 4))) == 1


def test_patients_of_whom_one_has_nearly_all_samples():
    contract, data = Contract(Guarded().federation.config), images(train=40)
    even = {"train": torch.arange(40) // 2}  # 20 of two samples
    require_many(SitePolicy(least_patients=20), contract, replace(data, persons=even))
    require_many(SitePolicy(least_patients=20), contract, replace(data, persons={"train": 10**12 - even["train"]}))
    most = {"train": torch.clamp(torch.arange(40) - 20, min=0)}  # 20, of whom one has 21
    with pytest.raises(StateError, match="few of the training patients have nearly all samples") as refused:
        require_many(SitePolicy(least_patients=20), contract, replace(data, persons=most))
    assert listed(str(refused.value), set()) == str(refused.value)


@pytest.mark.parametrize(("of_one", "taken"), [(6, True), (7, False)])
def test_patients_weigh_as_half_of_the_least_alike_at_least(of_one, taken):
    """Beside 19 of one sample each: (19 + n)^2 / (19 + n^2), which is 11.4 for 6 and 9.9 for 7."""
    contract, data = Contract(Guarded().federation.config), images(train=19 + of_one)
    uneven = replace(data, persons={"train": torch.clamp(torch.arange(19 + of_one), max=19)})
    if taken:
        require_many(SitePolicy(least_patients=20), contract, uneven)
        return
    with pytest.raises(StateError, match="few of the training patients have nearly all samples"):
        require_many(SitePolicy(least_patients=20), contract, uneven)


def test_a_label_that_is_known_of_few_patients():
    """Its row of the last layer has a gradient of those alone, in any run."""
    federation = Guarded().federation
    contract = Contract(federation.config.model_copy(update={"task": "multi-label"}))
    data = images(train=12)
    labels = torch.ones(12, 2, dtype=torch.long)
    labels[3:, 1] = -1
    some = replace(data, labels=data.labels | {"train": labels})
    require_many(SitePolicy(least_patients=3), contract, some)
    with pytest.raises(StateError, match="of one class there are fewer than 4 training patients"):
        require_many(SitePolicy(least_patients=4), contract, some)
    labels[:, 1] = -1  # nobody's is known: nothing is learned of it
    require_many(SitePolicy(least_patients=4), contract, some)


def test_contents_are_the_same_for_the_same_images_and_labels_alone():
    data = images(train=6)
    two = {"train": torch.tensor([0, 0, 1, 1, 2, 2])}
    whole, paired = contents(data), contents(replace(data, persons=two))
    assert len(whole) == 6 and len(paired) == 3
    changed = images(train=6)
    changed.images["train"][0, 0, 0, 0] += 1
    assert len(contents(changed) & whole) == 5
    relabelled = replace(data, labels=data.labels | {"train": data.labels["train"].flip(0)})
    assert len(contents(relabelled) & whole) < 6
    assert contents(SiteLoaders([])) is None and showing(SiteLoaders([])) is None
