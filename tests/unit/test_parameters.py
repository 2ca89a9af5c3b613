import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.networks import nets
from tiny import Net, same
from torch import nn

from medpfl.core.declarations import (
    BatchNorm,
    BelowTop,
    Everything,
    Modules,
    Nothing,
    Slice,
    TopLayers,
    Union,
    parse_declaration,
)
from medpfl.core.errors import UserError
from medpfl.core.parameters import ParameterSplit, StateError
from medpfl.models import build_model


class Block(nn.Module):
    """A residual block as torchvision's: the batch norm of its short cut is called ``downsample.1``."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride > 1:
            short_cut = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(short_cut, nn.BatchNorm2d(outside))


def resnet() -> nn.Module:
    layers = [Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2)]
    return nn.Sequential(nn.Conv2d(1, 8, 7), nn.BatchNorm2d(8), *layers, nn.Linear(32, 3))


def vgg() -> nn.Module:
    features: list[nn.Module] = []
    for inside, outside in ((3, 8), (8, 8), (8, 16)):
        features += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.ModuleDict({"features": nn.Sequential(*features), "classifier": nn.Linear(16, 3)})


def monai_unet(dims: int):
    return lambda: nets.UNet(dims, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1, norm="batch")


def built(name: str, size: tuple[int, ...], **model_args):
    return lambda: build_model(name, in_channels=1, num_classes=3, image_size=size, model_args=model_args)


NETWORKS = {
    "resnet": resnet,
    "vgg": vgg,
    "monai resnet18, 2-D": lambda: nets.resnet18(spatial_dims=2, n_input_channels=1, num_classes=3),
    "monai resnet18, 3-D": lambda: nets.resnet18(spatial_dims=3, n_input_channels=1, num_classes=3),
    "DenseNet121": lambda: nets.DenseNet121(spatial_dims=2, in_channels=1, out_channels=3),
    "EfficientNetBN": lambda: nets.EfficientNetBN("efficientnet-b0", in_channels=1, num_classes=3, pretrained=False),
    "UNet, 2-D": monai_unet(2),
    "UNet, 3-D": monai_unet(3),
    "unet": built("unet", (16, 16), channels=[4, 8]),
    "unet, 3-D": built("unet", (8, 8, 8), channels=[4, 8]),
    "segresnet-small, 3-D": built("segresnet-small", (8, 8, 8)),
    "AttentionUnet": built("monai:AttentionUnet", (16, 16), channels=[4, 8]),
    "DynUNet, 3-D": built("monai:DynUNet", (16, 16, 16), filters=[4, 4, 4, 4], norm_name="batch"),
    "UNETR": built("monai:UNETR", (16, 16), hidden_size=24, mlp_dim=48, num_heads=3, feature_size=4, norm_name="batch"),
    "SwinUNETR": built("monai:SwinUNETR", (64, 64), feature_size=12, norm_name="batch"),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    return NETWORKS[request.param]()


def blank(model: nn.Module) -> None:
    """Other values everywhere, so that what is put back later shows."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(7)


def copied(model: nn.Module) -> dict:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def elements(state) -> int:
    return sum(tensor.numel() for tensor in state.values())


def test_batch_norm_is_found_by_type_and_whole(network):
    # Counted independently: only batch norm has running statistics, of which every layer has one of each.
    expected = {
        f"{name.removesuffix('running_mean')}{entry}"
        for name in network.state_dict()
        if name.endswith("running_mean")
        for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert expected
    assert set(BatchNorm().personal(network)) == expected
    indices = {name for name, tensor in network.state_dict().items() if not tensor.is_floating_point()}
    assert set(ParameterSplit(network, BatchNorm()).personal_names) == expected | indices


def test_counts_of_known_networks():
    assert len(BatchNorm().personal(NETWORKS["DenseNet121"]())) == 605
    assert len(BatchNorm().personal(NETWORKS["monai resnet18, 2-D"]())) == 100


@pytest.mark.parametrize("text", ["nothing", "everything", "batch-norm", "top:1", "below-top:2", "batch-norm+top:1"])
def test_shared_and_personal_make_the_model_again(network, text):
    split = ParameterSplit(network, parse_declaration(text))
    before = copied(network)
    shared, personal = split.shared_state(network), split.personal_state(network)
    assert not shared.keys() & personal.keys()
    assert shared.keys() | personal.keys() == before.keys()
    blank(network)
    split.load_shared(network, shared)
    split.load_personal(network, personal)
    assert same(network.state_dict(), before)


@st.composite
def declarations(draw):
    """Unions of random slices and whole entries of the state of :class:`Net`."""
    state = Net().state_dict()
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        personal = {}
        for name in draw(st.lists(st.sampled_from(sorted(state)), unique=True)):
            # One dimension a name: slices of the same entry in two dimensions are refused.
            dim = len(name) % state[name].ndim if state[name].ndim else None
            rows = st.lists(st.integers(0, state[name].shape[dim] - 1)) if dim is not None else st.nothing()
            piece = draw(st.one_of(st.none(), rows.map(lambda index, d=dim: Slice(d, tuple(index)))))
            personal[name] = piece
        parts.append(Fixed(personal))
    return Union(tuple(parts))


class Fixed:
    """Declares just what it is given."""

    def __init__(self, pieces):
        self.pieces = pieces

    def personal(self, model, x=None):
        return dict(self.pieces)

    def __repr__(self):
        return f"Fixed({self.pieces})"


@settings(max_examples=100)
@given(declarations(), st.integers(0, 1000))
def test_any_declaration_covers_the_state_and_is_disjoint(declaration, seed):
    torch.manual_seed(seed)
    model = Net()
    # Every element of the model gets a number of its own, so that no element can hide.
    count = 0
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.arange(count, count + tensor.numel()).view(tensor.shape))
            count += tensor.numel()
    before = copied(model)
    split = ParameterSplit(model, declaration)
    shared, personal = split.shared_state(model), split.personal_state(model)
    left = torch.cat([t.flatten().double() for t in shared.values()] or [torch.empty(0)])
    stayed = torch.cat([t.flatten().double() for t in personal.values()] or [torch.empty(0)])
    assert sorted([*left.tolist(), *stayed.tolist()]) == list(range(count))
    blank(model)
    split.load_personal(model, personal)
    split.load_shared(model, shared)
    assert same(model.state_dict(), before)


def test_slices_are_compact_and_hold_no_personal_value():
    model = nn.Linear(3, 4)
    with torch.no_grad():
        model.weight.fill_(1.0)[[0, 2]] = -5.0
        model.bias.fill_(1.0)[1] = -5.0
    split = ParameterSplit(model, Fixed({"weight": Slice(0, (2, 0)), "bias": Slice(0, (1,))}))
    shared, personal = split.shared_state(model), split.personal_state(model)
    assert [list(shared["weight"].shape), list(shared["bias"].shape)] == [[2, 3], [3]]
    assert all((t == 1.0).all() for t in shared.values())
    assert all((t == -5.0).all() for t in personal.values())
    assert elements(shared) + elements(personal) == 16
    assert split.description() == ["weight [4, 3] float32 shared[0] 1:2,3:4", "bias [4] float32 shared[0] 0:1,2:4"]


def test_slices_along_columns():
    model = nn.Linear(3, 2, bias=False)
    split = ParameterSplit(model, Fixed({"weight": Slice(1, (1,))}))
    assert torch.equal(split.shared_state(model)["weight"], model.weight[:, [0, 2]])
    assert torch.equal(split.personal_state(model)["weight"], model.weight[:, [1]])


def test_states_are_copies():
    model = nn.Linear(3, 2)
    split = ParameterSplit(model, Fixed({"weight": Slice(0, (0,))}))
    shared, before = split.shared_state(model), split.shared_state(model)
    blank(model)
    assert same(shared, before)


def test_shared_views_are_differentiable_and_reach_only_shared_elements():
    model = Net()
    split = ParameterSplit(model, Union((BatchNorm(), Fixed({"fc1.weight": Slice(0, (0, 1))}))))
    views = split.shared_views(model)
    assert list(views) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    sum(v.sum() for v in views.values()).backward()
    assert torch.equal(model.fc1.weight.grad, torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])[:, None].expand(6, 16))
    assert model.norm.weight.grad is None


def test_whole_numbers_always_stay_at_the_site():
    split = ParameterSplit(Net(), Nothing())
    assert split.personal_names == ("norm.num_batches_tracked",)
    assert "norm.running_mean" in split.shared_names


def test_a_personal_tensor_does_not_leave_under_its_other_name():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "body": nn.Linear(3, 3), "out": nn.Linear(3, 5)})
    model["out"].weight = model["embed"].weight
    split = ParameterSplit(model, Modules(("out",)))
    assert split.shared_names == ("body.weight", "body.bias")


def broken(shared, **change):
    return {name: tensor for name, tensor in {**shared, **change}.items() if tensor is not None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc1.weight": None}, "shared entry 'fc1.weight' is missing"),
        ({"norm.weight": torch.ones(6)}, "'norm.weight' does not belong to the shared state"),
        ({"fc1.bias": torch.ones(5)}, r"'fc1.bias' has shape \[5\], expected \[6\]"),
        ({"fc1.bias": torch.ones(6, dtype=torch.long)}, "'fc1.bias' has type torch.int64"),
        ({"fc2.bias": torch.tensor([0.0, float("nan"), 0.0])}, "'fc2.bias' has non-finite values"),
        ({"fc2.bias": torch.tensor([0.0, float("-inf"), 0.0])}, "'fc2.bias' has non-finite values"),
        ({"fc2.bias": torch.tensor([0.0, 1e300, 0.0], dtype=torch.float64)}, "'fc2.bias' has non-finite values"),
    ],
)
def test_wrong_shared_state_is_named_and_changes_nothing(change, message):
    model = Net()
    split, before = ParameterSplit(model, BatchNorm()), copied(model)
    wrong = broken({name: torch.full_like(t, 3.0) for name, t in split.shared_state(model).items()}, **change)
    with pytest.raises(StateError, match=message):
        split.load_shared(model, wrong)
    assert same(model.state_dict(), before)


def test_wrong_personal_state_is_named_and_changes_nothing():
    model = Net()
    split, before = ParameterSplit(model, BatchNorm()), copied(model)
    personal = {name: torch.full_like(t, 3) for name, t in split.personal_state(model).items()}
    with pytest.raises(StateError, match=r"personal entry 'norm.running_var' has non-finite"):
        split.load_personal(model, personal | {"norm.running_var": torch.full((6,), float("inf"))})
    with pytest.raises(StateError, match=r"personal entry 'norm.bias' is missing \(2 in all\)"):
        split.load_personal(model, broken(personal, **{"norm.bias": None, "norm.running_mean": None}))
    assert same(model.state_dict(), before)


def test_a_negative_variance_is_refused_for_batch_norm_would_give_nan_without_a_word():
    model = Net()
    split = ParameterSplit(model, Nothing())
    shared = split.shared_state(model)
    wrong = shared | {"norm.running_var": torch.tensor([1.0, 1, 1, 1, 1, -1e-6])}
    with pytest.raises(StateError, match=r"shared entry 'norm.running_var' has negative variances"):
        split.load_shared(model, wrong)
    split.load_shared(model, shared | {"norm.running_var": torch.zeros(6), "norm.running_mean": -torch.ones(6)})


def test_first_difference():
    ours, theirs = ParameterSplit(Net(), BatchNorm()), ParameterSplit(Net(num_classes=4), BatchNorm())
    again = ParameterSplit(Net(), BatchNorm())
    assert ours.first_difference(again.description()) is None
    assert ours.first_difference(theirs.description()) == (
        "here 'fc2.weight [3, 6] float32 shared', there 'fc2.weight [4, 6] float32 shared'"
    )
    other_personal = ParameterSplit(Net(), Nothing())
    assert "'norm.weight [6] float32 personal'" in ours.first_difference(other_personal.description())
    assert ours.first_difference(ours.description()[:-1]) == "only here 'fc2.bias [3] float32 shared'"
    assert ours.first_difference([*ours.description(), "more"]) == "only there 'more'"


def test_without_batch_norm_there_is_nothing_to_keep():
    with pytest.raises(UserError, match="Linear has no batch-norm layer"):
        ParameterSplit(nn.Linear(2, 2), BatchNorm())
    assert ParameterSplit(nn.Linear(2, 2), BatchNorm(required=False)).shared_names == ("weight", "bias")
    assert (
        ParameterSplit(Net(), BatchNorm(required=False)).description()
        == ParameterSplit(Net(), BatchNorm()).description()
    )


def test_batch_norm_without_any_state_is_none_that_could_be_kept():
    bare = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False, track_running_stats=False))
    with pytest.raises(UserError, match="has neither weights nor running statistics"):
        ParameterSplit(bare, BatchNorm())
    assert ParameterSplit(bare, BatchNorm(required=False)).shared_names == ("0.weight", "0.bias")


def test_top_and_below_top_are_complements():
    model = Net()
    top, below = ParameterSplit(model, TopLayers(1)), ParameterSplit(model, BelowTop(1))
    assert [n for n in top.personal_names if "tracked" not in n] == ["fc2.weight", "fc2.bias"]
    assert below.shared_names == ("fc2.weight", "fc2.bias")


@pytest.mark.parametrize("layers", [2, 3])
def test_more_layers_than_there_are(layers):
    with pytest.raises(UserError, match=f"Net has 2 weighted layers.* between 1 and 1, got {layers}"):
        ParameterSplit(Net(), TopLayers(layers))


def test_modules_by_path():
    assert set(Modules(("fc1", "norm.weight")).personal(Net())) == {"fc1.weight", "fc1.bias", "norm.weight"}
    with pytest.raises(UserError, match="Net has no module 'fc' with state; it has: fc1, norm, dropout, fc2"):
        Modules(("fc",)).personal(Net())


def test_union_of_slices_and_whole_entries():
    model = nn.Linear(3, 4)
    rows = Union((Fixed({"weight": Slice(0, (3, 1))}), Fixed({"weight": Slice(0, (0, 1))})))
    assert rows.personal(model) == {"weight": Slice(0, (0, 1, 3))}
    assert Union((rows, Fixed({"weight": None}))).personal(model) == {"weight": None}
    assert Union((Fixed({"weight": None}), rows)).personal(model) == {"weight": None}
    with pytest.raises(UserError, match="slice 'weight' along different dimensions"):
        Union((rows, Fixed({"weight": Slice(1, (0,))}))).personal(model)


def test_a_slice_outside_of_its_entry():
    with pytest.raises(ValueError, match="lies outside shape"):
        ParameterSplit(nn.Linear(3, 4), Fixed({"weight": Slice(0, (4,))}))


@pytest.mark.parametrize(
    ("text", "declaration"),
    [
        ("nothing", Nothing()),
        ("everything", Everything()),
        ("batch-norm", BatchNorm()),
        ("any-batch-norm", BatchNorm(required=False)),
        ("top:2", TopLayers(2)),
        ("below-top:1", BelowTop(1)),
        ("modules:a.b, c", Modules(("a.b", "c"))),
        ("batch-norm + top:1", Union((BatchNorm(), TopLayers(1)))),
    ],
)
def test_declarations_are_read(text, declaration):
    assert parse_declaration(text) == declaration


@pytest.mark.parametrize(
    "text", ["", "bn", "top", "top:", "top:0", "top:-1", "top:x", "modules:", "batch-norm+", "Top:1"]
)
def test_unknown_declarations_are_refused(text):
    with pytest.raises(UserError, match="unknown personal part"):
        parse_declaration(text)


@pytest.mark.parametrize("other", [None, Slice(0, (2,))])
def test_of_tied_weights_all_is_personal_that_is_so_under_any_name(other):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    for pieces in ((Slice(0, (0,)), other), (other, Slice(0, (0,)))):
        split = ParameterSplit(model, Fixed(dict(zip(("0.weight", "1.weight"), pieces, strict=True))))
        rows = {len(split.personal_state(model)[name]) for name in ("0.weight", "1.weight")}
        assert rows == {4 if other is None else 2}
        assert ("0.weight" in split.shared_names) == (other is not None)
