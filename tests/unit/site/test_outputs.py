"""A label without an output is named before anything is computed with it: a GPU's process would not survive it."""

import pytest
import torch
from tiny import Net, config, images, plan_of, sites_of

from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.messages import Failure
from medpfl.core.own_loaders import LabelOutside
from medpfl.core.permitted_code import permit
from medpfl.core.site_data import PARTS, ImageTensors, SiteLoaders
from medpfl.engine.federation import Federation
from medpfl.runs.experiment import run_experiment
from medpfl.server.rounds import ServerState, messages
from medpfl.site.answer import answer
from medpfl.site.outputs import require_outputs
from medpfl.tasks import TASKS

WORDS = "a label lies outside 0 to 2: the model has 3 outputs"
CLASSES, MASKS = TASKS["classification"], TASKS["segmentation"]


def batch(label):
    return torch.zeros(2, 1, 4, 4), torch.tensor([0, label])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("label", [3, -1])
def test_of_images_in_memory(part, label):
    data = images()
    data.labels[part][1] = label
    model = Net()
    with pytest.raises(LabelOutside, match=WORDS):
        require_outputs(model, data, CLASSES)
    assert model.training


def test_what_the_loss_leaves_out_may_stay():
    data = images()
    data.labels["train"][1] = -100
    require_outputs(Net(), data, CLASSES)


@pytest.mark.parametrize("part", PARTS)
def test_of_masks(part):
    kept = {p: torch.zeros(3, 1, 4, 4) for p in PARTS}
    masks = {p: torch.zeros(3, 4, 4, dtype=torch.uint8) for p in PARTS}
    masks[part][2, 0, 0] = 5
    pictures = MaskedImages(kept, masks)
    volumes = MaskedVolumes(
        {p: [x.transpose(0, 1)] for p, x in kept.items()}, {p: [mask] for p, mask in masks.items()}, (3, 4, 4)
    )
    for data, conv in ((pictures, torch.nn.Conv2d), (volumes, torch.nn.Conv3d)):
        with pytest.raises(LabelOutside, match=WORDS):
            require_outputs(conv(1, 3, 1), data, MASKS)
        require_outputs(conv(1, 6, 1), data, MASKS)


def test_several_labels_have_an_output_each():
    data = ImageTensors({p: torch.zeros(2, 1, 4, 4) for p in PARTS}, {p: torch.ones(2, 1) for p in PARTS})
    require_outputs(Net(num_classes=1), data, TASKS["multi-label"])


def test_loaders_say_it_at_their_batch():
    data = SiteLoaders([batch(1), batch(7)], [batch(2)], [batch(-1)])
    model = Net()
    require_outputs(model, data, CLASSES)
    assert data.outputs == 3
    order = torch.Generator().manual_seed(0)
    seen = []
    with pytest.raises(LabelOutside, match=WORDS):
        seen.extend(data.training_batches(2, order))
    assert len(list(data.batches("validation", 2))) == 1
    with pytest.raises(LabelOutside, match=WORDS):
        list(data.batches("test", 2))


def test_looking_at_a_loader_draws_nothing():
    drawn = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch(1)), shuffle=True)
    model, before = Net(), torch.get_rng_state()
    require_outputs(model, SiteLoaders(drawn), CLASSES)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_site_without_samples_says_that():
    require_outputs(Net(), images(train=0, validation=0, test=0), CLASSES)


def test_a_site_says_it_at_its_first_message_and_looks_no_further():
    federation = Federation.of(config(rounds=1))
    site, looked = sites_of(federation)["site-1"], []
    hello = messages(plan_of(federation), ServerState())["site-1"]
    site.data.labels["test"][0] = 12
    assert answer(site, hello, federation.model()) == Failure("site-1", 0, WORDS)
    site.data.labels["test"][0] = 0
    model = federation.model()
    model.register_forward_pre_hook(lambda module, _: looked.append(module.training))
    answer(site, hello, model)
    answer(site, hello, model)
    assert looked == [False]


def test_a_gpu_without_memory_is_said():
    federation = Federation.of(config(rounds=1))
    site = sites_of(federation)["site-1"]
    hello = messages(plan_of(federation), ServerState())["site-1"]
    model = federation.model()

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. Process 4711 has 79 GiB")

    model.register_forward_pre_hook(full)
    assert answer(site, hello, model).reason == (
        "the GPU has not enough memory in task 'prepare': a smaller batch_size with a larger accumulate, or "
        "precision=bf16, takes less"
    )


def own_images(site, seed):
    """Of which one site has a label without an output."""
    data = images(seed=seed)
    data.labels["test"][0] = 9 if site == "site-2" else 0
    return data


def test_it_costs_its_site_alone(tmp_path):
    permit(__name__)
    results = run_experiment(config(data=f"{__name__}:own_images", min_sites=2, rounds=1), tmp_path, env="inprocess")
    assert {(failure["site"], failure["reason"]) for failure in results["failures"]} == {("site-2", WORDS)}
    assert results["final"]["selected"]["sites"].keys() == {"site-1", "site-3"}
    assert f"no test of all sites' models together: site-2: {WORDS}" in results["notes"]
