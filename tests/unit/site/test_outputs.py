"""A label without an output is named before anything is computed with it: a GPU's process would not survive it."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from test_guard import KEY, Guarded
from tiny import Net, config, images, plan_of, sites_of
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.messages import Failure, Message
from medpfl.core.own_loaders import LabelOutside, LoaderError, NotPlain, require_inside
from medpfl.core.permitted_code import permit
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import PARTS, ImageTensors, SiteLoaders
from medpfl.engine.federation import Federation
from medpfl.runs.experiment import run_experiment
from medpfl.server.rounds import messages
from medpfl.site.answer import answer
from medpfl.site.outputs import require_outputs
from medpfl.site.policy import SitePolicy
from medpfl.site.words import listed
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
    """On a GPU they are told the outputs; on a CPU the loss says it."""
    data = SiteLoaders([batch(1), batch(7)], [batch(2)], [batch(-1)])
    data.outputs = 3
    seen = []
    with pytest.raises(LabelOutside, match=WORDS):
        seen.extend(data.training_batches(2, torch.Generator()))  # keeps what came before the error
    assert len(seen) == 1
    assert len(list(data.batches("validation", 2))) == 1
    with pytest.raises(LabelOutside, match=WORDS):
        list(data.batches("test", 2))
    with pytest.raises(LabelOutside, match=WORDS):
        CLASSES.loss(torch.zeros(2, 3), torch.tensor([0, 7]))


def test_on_a_gpu_loaders_are_told_the_outputs(monkeypatch):
    data, model = SiteLoaders([batch(1)], [batch(7)]), Net()
    require_outputs(model, data, CLASSES)
    assert data.outputs is None
    monkeypatch.setattr(model, "parameters", lambda: iter([torch.empty(1, device="meta")]))  # as of one elsewhere
    require_outputs(model, data, CLASSES)
    assert data.outputs == 3


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.tensor(1), "not as many labels as inputs"),
        (torch.tensor([1]), "not as many labels as inputs"),
        (torch.tensor([0.5, 1.0]), "no whole numbers"),
        (torch.tensor([float("nan"), 1.0]), "no whole numbers"),
        (torch.tensor([0j, 1j]), "no whole numbers"),
    ],
)
def test_labels_that_no_loss_takes_as_they_are(labels, words):
    """Half a label would be trained on as none."""
    data = SiteLoaders([(torch.zeros(2, 1, 4, 4), labels)])
    with pytest.raises(LoaderError, match=f"a batch has .*{words}"):
        list(data.training_batches(2, torch.Generator()))


def stream(number):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.zeros(1, 4, 4), 1)] * number)

    return DataLoader(Stream(), batch_size=2)


def test_inputs_to_try_a_network_with_come_from_any_part():
    assert SiteLoaders(stream(2), (), stream(3), plain=stream(2)).some_inputs().shape == (2, 1, 4, 4)
    assert SiteLoaders(DataLoader(TensorDataset(*batch(1)))).some_inputs().shape == (1, 1, 4, 4)
    assert SiteLoaders(()).some_inputs() is None
    with pytest.raises(NotPlain, match="gives"):
        SiteLoaders([batch(1)], iter([batch(1)])).some_inputs()


@pytest.mark.parametrize(
    ("labels", "right"),
    [
        (torch.tensor([156], dtype=torch.uint8), False),  # -100 in 8 bits
        (torch.tensor([2], dtype=torch.uint16), True),
        (torch.tensor([3], dtype=torch.uint16), False),
        (torch.tensor([-100, 2, 0]), True),
        (torch.tensor([-100, -101]), False),
        (torch.tensor([-100, 3]), False),
        (torch.tensor([], dtype=torch.long), True),
        (torch.tensor([[1.0], [0.0]]), True),
    ],
)
def test_labels_of_any_type(labels, right):
    with nullcontext() if right else pytest.raises(LabelOutside, match=WORDS):
        require_inside(labels, 3)


def test_a_network_trains_with_what_it_keeps_of_a_pass():
    class Kept(Net):
        grid = None

        def forward(self, x):
            self.grid = torch.ones(16) * 2 if self.grid is None else self.grid
            return super().forward(x.flatten(1) * self.grid)

    model = Kept()
    require_outputs(model, images(), CLASSES)
    model(torch.zeros(2, 1, 4, 4, requires_grad=True)).sum().backward()


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


@pytest.mark.parametrize(
    ("task", "advice"),
    [("prepare", ""), ("train", ": a smaller batch_size with a larger accumulate, or precision=bf16, takes less")],
)
def test_a_gpu_without_memory_is_said(task, advice):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. Process 4711 has 79 GiB")

    site = SimpleNamespace(name="site-1", handle=full)
    reason = answer(site, Message(task, 1, {}), Net()).reason
    assert reason == listed(reason, ()) == f"the GPU has not enough memory in task {task!r}{advice}"


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


def broken_loaders(site, seed):
    """Of which one site's inputs are of a type that the network does not take, and fails wherever it is asked."""
    kind = torch.float16 if site == "site-2" else torch.float32
    return SiteLoaders(*[[(torch.zeros(2, 1, 4, 4, dtype=kind), torch.tensor([0, 1]))] for _ in PARTS])


def test_the_test_of_all_models_ends_no_run_for_a_site_that_failed(tmp_path):
    permit(__name__)
    asked = config(data=f"{__name__}:broken_loaders", min_sites=2, rounds=1)
    results = run_experiment(asked, tmp_path, env="inprocess")
    assert results["final"]["selected"]["sites"].keys() == {"site-1", "site-3"}
    assert any(note.startswith("no test of all sites' models together: site-2: ") for note in results["notes"])


@pytest.mark.parametrize(("label", "first"), [(0, None), (12, WORDS)])
def test_to_ask_for_labels_costs_an_experiment(tmp_path, label, first):
    """Else whoever names the number of outputs could find out the largest label for nothing."""
    told = []
    for experiment, method in (("a", "fedbn"), ("b", "fedavg")):
        guarded = Guarded(method, SitePolicy(experiments=1), tmp_path / experiment, KEY)
        guarded.site.party.data.labels["test"][0] = label
        told.append(getattr(guarded.ask("prepare"), "reason", None))
    assert told == [first, "policy: the data have served 1 experiments, which is the limit (experiments)"]
