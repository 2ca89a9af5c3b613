"""Weights that a run begins with: what of a file fits a network, by hand."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from medpfl.core.errors import UserError
from medpfl.models import build_model
from medpfl.models.blend import blended
from medpfl.models.start_weights import Start, start_weights


class Tiny(nn.Module):
    """A convolution, batch norm and a classifier."""

    def __init__(self, channels: int = 1, classes: int = 2):
        super().__init__()
        self.conv = nn.Conv2d(channels, 2, 1)
        self.norm = nn.BatchNorm2d(2)
        self.out = nn.Linear(2, classes)

    def forward(self, x):
        return self.out(self.norm(self.conv(x)).mean((2, 3)))


def drawn(seed: int, *args) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(*args)


def saved(tmp_path, model, name="weights.safetensors"):
    save_file(model.state_dict(), tmp_path / name)
    return tmp_path / name


def blank(channels=1):
    return torch.zeros(1, channels, 2, 2)


def test_all_of_a_file(tmp_path):
    theirs, ours = drawn(0), drawn(1)
    start = start_weights(saved(tmp_path, theirs), ours, blank())
    assert all(torch.equal(start.state[name], tensor) for name, tensor in theirs.state_dict().items())
    assert start.report["loaded"]["count"] == 9
    assert {start.report[kind]["count"] for kind in ("missing", "classes", "reshaped", "unused")} == {0}
    assert start.report["file"] == "weights.safetensors"
    assert str(tmp_path) not in json.dumps(start.report)
    assert start.named == Start(dict(theirs.state_dict())).named != Start(dict(ours.state_dict())).named


@pytest.mark.parametrize(
    "content",
    [
        lambda state: state,
        lambda state: {"epoch": 3, "state_dict": state},
        lambda state: {"model": {"state_dict": {f"module.{k}": v for k, v in state.items()}}},
    ],
)
def test_what_torch_has_saved(tmp_path, content):
    theirs = drawn(0)
    torch.save(content(theirs.state_dict()), tmp_path / "weights.pt")
    start = start_weights(tmp_path / "weights.pt", drawn(1), blank())
    assert torch.equal(start.state["conv.weight"], theirs.conv.weight)
    assert start.report["loaded"]["count"] == 9


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_bundles_folder(tmp_path, name):
    (tmp_path / "models").mkdir()
    theirs = drawn(0)
    if name.endswith("pt"):
        torch.save(theirs.state_dict(), tmp_path / "models" / name)
    else:
        saved(tmp_path / "models", theirs, name)
    assert torch.equal(start_weights(tmp_path, drawn(1), blank()).state["out.weight"], theirs.out.weight)


def test_another_number_of_classes_leaves_the_output_as_drawn(tmp_path):
    theirs, ours = drawn(0, 1, 5), drawn(1, 1, 2)
    start = start_weights(saved(tmp_path, theirs), ours, blank())
    assert torch.equal(start.state["out.weight"], ours.out.weight)
    assert torch.equal(start.state["out.bias"], ours.out.bias)
    assert torch.equal(start.state["conv.weight"], theirs.conv.weight)
    assert start.report["classes"] == {"count": 2, "names": ["out.bias", "out.weight"]}
    assert (
        "2 are as drawn, since the file's network has another number of classes (out.bias, out.weight)"
        in start.in_words()
    )


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (3, 1, [1 + 2 + 6]),  # their mean is 3, and three of them were added
        (1, 3, [2 / 3] * 3),
        (2, 4, [1.0] * 4),  # mean 2, times 2 / 4
    ],
)
def test_another_number_of_channels(tmp_path, theirs, ours, expected):
    values = {3: [1.0, 2.0, 6.0], 1: [2.0], 2: [1.0, 3.0]}[theirs]
    other = drawn(0, theirs)
    with torch.no_grad():
        other.conv.weight[0, :, 0, 0] = torch.tensor(values)
    start = start_weights(saved(tmp_path, other), drawn(1, ours), blank(ours))
    assert start.state["conv.weight"][0, :, 0, 0].tolist() == pytest.approx(expected)
    assert start.report["reshaped"] == {"count": 1, "names": ["conv.weight"]}
    # A grey image in each channel gives what it gave.
    model = Tiny(ours).eval()
    model.load_state_dict(start.state)
    grey = torch.rand(1, 1, 2, 2)
    same = grey.expand(1, theirs, 2, 2), grey.expand(1, ours, 2, 2)
    torch.testing.assert_close(other.eval()(same[0]), model(same[1]))


def test_what_the_file_has_not_and_what_has_no_place_is_counted(tmp_path):
    state = {f"conv.{k}": v for k, v in drawn(0).conv.state_dict().items()}
    save_file(state | {f"old.{i:02}": torch.zeros(1) for i in range(30)}, tmp_path / "some.safetensors")
    start = start_weights(tmp_path / "some.safetensors", drawn(1), blank())
    assert (start.report["loaded"]["count"], start.report["missing"]["count"]) == (2, 7)
    assert start.report["unused"]["count"] == 30
    assert len(start.report["unused"]["names"]) == 20
    assert (
        "30 of the file have no place in the network (old.00, old.01, old.02, old.03, old.04, ...)" in start.in_words()
    )


def test_half_precision_becomes_the_networks(tmp_path):
    start = start_weights(saved(tmp_path, drawn(0).half()), drawn(1), blank())
    assert start.state["conv.weight"].dtype == torch.float32


class Code:
    """What a pickle could run."""

    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: None, "there is no such file"),
        (lambda f: f.mkdir(), "no bundle's folder: it has none of models/model.pt"),
        (lambda f: f.write_bytes(b"x" * 50), "cannot be read"),
        (lambda f: torch.save({"epoch": 3}, f), "holds no tensors by name"),
        (lambda f: torch.save({"a": Code()}, f), "cannot be read"),
        (
            lambda f: torch.save({"weight": torch.zeros(2)}, f),
            r"none of its 1 entries \(weight, ...\) is one of the net",
        ),
        (
            lambda f: torch.save({"conv.bias": torch.zeros(7)}, f),
            r"conv.bias has shape \[7\], and \[2\] in the network",
        ),
        (lambda f: torch.save({"conv.bias": torch.zeros(2).long()}, f), "conv.bias has type torch.int64"),
        (lambda f: torch.save({"conv.bias": torch.full((2,), torch.nan)}, f), "conv.bias has non-finite values"),
        (lambda f: torch.save(blended(drawn(0).state_dict(), drawn(1).state_dict(), 0.5), f), "holds two models"),
    ],
)
def test_mistakes_are_named(tmp_path, make, message, capsys):
    make(tmp_path / "weights.pt")
    with pytest.raises(UserError, match=f"--init .*{message}") as caught:
        start_weights(tmp_path / "weights.pt", drawn(1), blank())
    assert "\n" not in str(caught.value)
    assert "run" not in capsys.readouterr().out


def test_of_one_segmentation_network_for_another_number_of_structures(tmp_path):
    def unet(classes, channels):
        args = {"channels": [4, 8]}
        return build_model("unet", in_channels=channels, num_classes=classes, image_size=8, model_args=args)

    theirs, ours = unet(5, 1), unet(3, 3)
    with torch.no_grad():
        for tensor in theirs.parameters():
            tensor.add_(1.0)
    start = start_weights(saved(tmp_path, theirs), ours, torch.zeros(1, 3, 8, 8))
    # Both the unit and its short cut read the images.
    assert start.report["reshaped"]["names"] == ["model.0.conv.unit0.conv.weight", "model.0.residual.weight"]
    # The transposed convolution before the output, with its norm, makes as many channels as there are classes.
    names = {name.rpartition(".")[0] for name in start.report["classes"]["names"]}
    assert names == {"model.2.0.conv", "model.2.0.adn.N", "model.2.1.conv.unit0.conv"}


def test_outputs_of_a_transposed_convolution_are_in_its_second_dimension(tmp_path):
    def network(classes):
        return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ConvTranspose2d(4, classes, 3))

    start = start_weights(saved(tmp_path, network(5)), network(3), torch.zeros(1, 1, 8, 8))
    assert start.report["classes"]["names"] == ["1.bias", "1.weight"]
    assert start.report["loaded"]["count"] == 2
    with pytest.raises(UserError, match=r"0\.weight has shape"):
        wider = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3), torch.nn.ConvTranspose2d(6, 3, 3))
        start_weights(tmp_path / "weights.safetensors", wider, torch.zeros(1, 1, 8, 8))
