from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from tiny import Net, config, images, same
from torch.nn.functional import cross_entropy

from medpfl.algorithms.fedap.pretraining import load_pretrained, pretrain
from medpfl.algorithms.mechanism import ServerParts
from medpfl.core.declarations import parse_declaration
from medpfl.core.errors import UserError
from medpfl.core.parameters import ParameterSplit
from medpfl.data.public_images import public_images


def seeded_net():
    torch.manual_seed(0)
    return Net()


def test_pretraining_repeats_whatever_was_drawn_before_and_leaves_the_global_generator():
    first, data, found = Net(dropout=0.5), images(train=40), []
    for seed, drawn in ((0, 5), (0, 6), (1, 5)):
        torch.manual_seed(drawn)
        before = torch.get_rng_state()
        found.append(pretrain(config("fedap", seed=seed), 2, deepcopy(first), data))
        assert torch.equal(torch.get_rng_state(), before)
    assert same(found[0], found[1]) and not same(found[0], found[2])


def test_the_order_of_the_pooled_images_is_the_seeds():
    one, other = (pretrain(config("fedap", seed=seed), 1, seeded_net(), images(train=40)) for seed in (0, 1))
    assert not same(one, other)


def test_pretraining_learns_for_the_given_epochs():
    short, long = (pretrain(config("fedap"), e, seeded_net(), images(train=12)) for e in (1, 3))
    # Batches of 4: three an epoch.
    assert (short["norm.num_batches_tracked"].item(), long["norm.num_batches_tracked"].item()) == (3, 9)
    assert not torch.equal(short["fc1.weight"], seeded_net().fc1.weight)


def test_pretraining_weighs_classes_as_the_run_does():
    """Classes of 1, 1 and 6 images, all in one batch: the first step is along the weighted mean's gradient."""
    own = images(train=8)
    own.labels["train"] = torch.tensor([0, 1, 2, 2, 2, 2, 2, 2])
    found = []
    for weights, settings in (((8 / 3, 8 / 3, 8 / 18), {"class_weights": "balanced"}), ((1, 1, 1), {})):
        run, expected = config("fedap", settings={"batch_size": 8, **settings}), seeded_net()
        f = pretrain(run, 1, seeded_net(), own)
        x, y = next(iter(own.batches("train", 8)))
        cross_entropy(expected(x), y, torch.tensor(weights, dtype=torch.float32)).backward()
        torch.testing.assert_close(f["fc2.bias"], expected.fc2.bias.detach() - 0.1 * expected.fc2.bias.grad)
        found.append(f["fc2.bias"])
    assert not torch.allclose(*found)


def test_the_hello_brings_a_model_pretrained_as_the_settings_say():
    run, shares = config("fedap", settings={"pretrain_epochs": 3, "pretrain_share": 0.5}), []
    source = SimpleNamespace(pooled_training=lambda share, device: shares.append(share) or images(train=12))
    split = ParameterSplit(Net(), parse_declaration("batch-norm"))
    parts = ServerParts(run, split, seeded_net, {}, {}, source, public_images, torch.device("cpu"), lambda: False)
    f = run.mixer.hello(parts)
    assert shares == [0.5]
    assert same(f, pretrain(run, 3, seeded_net(), images(train=12)))
    assert run.mixer.given(parts) is None


@pytest.mark.parametrize("name", ["f.safetensors", "f.pt"])
def test_a_checkpoint_is_read(tmp_path, name):
    state = Net().state_dict()
    (save_file if name.endswith("safetensors") else torch.save)(state, tmp_path / name)
    assert same(load_pretrained(tmp_path / name, Net()), state)


def test_no_file(tmp_path):
    with pytest.raises(UserError, match=r"pretrain: no file .*f-fedap"):
        load_pretrained(tmp_path / "f.pt", Net())


@pytest.mark.parametrize("name", ["f.safetensors", "f.pt"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x02h\x00."])
def test_unreadable_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as safetensors or as a torch state dict"):
        load_pretrained(tmp_path / name, Net())


def test_a_pickle_is_never_run(tmp_path):
    torch.save(Net(), tmp_path / "f.pt")
    with pytest.raises(UserError, match="cannot be read"):
        load_pretrained(tmp_path / "f.pt", Net())


@pytest.mark.parametrize("content", [Net(num_classes=4).state_dict(), {"w": torch.ones(1)}, [1, 2], {"fc1.weight": 3}])
def test_another_architecture(tmp_path, content):
    torch.save(content, tmp_path / "f.pt")
    with pytest.raises(UserError, match="does not fit Net"):
        load_pretrained(tmp_path / "f.pt", Net())
