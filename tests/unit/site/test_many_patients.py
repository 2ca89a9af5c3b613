"""What leaves rests on many patients, whatever a job says: of how many, of which class, of which steps and images."""

from dataclasses import replace

import pytest
import torch
from test_guard import Guarded
from tiny import images

from medpfl.site.contract import Contract
from medpfl.site.many_patients import patients, require_many
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
