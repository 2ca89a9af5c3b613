import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from tiny import same

from medpfl.core.errors import TornFile
from medpfl.core.statefile import read_state, serialised_bytes, write_state
from medpfl.core.whole_file import write_bytes

STATE = {
    "conv.weight": torch.linspace(-1, 1, 24).reshape(2, 3, 4),
    "norm.num_batches_tracked": torch.tensor(17),
    "statistics": torch.tensor([1e-300, 2.0], dtype=torch.float64),
    "empty": torch.empty(0, 3),
}


def test_round_trip(tmp_path):
    write_state(tmp_path / "state", STATE, info={"round": 3, "sites": ["å", None]})
    tensors, info = read_state(tmp_path / "state")
    assert same(tensors, STATE)
    assert info == {"round": 3, "sites": ["å", None]}
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_rows_of_one_product_and_views_are_written(tmp_path):
    product = torch.arange(12.0).reshape(3, 4)
    views = {"a": product[0], "b": product[1], "t": product.t(), "again": product, "slice": product[:, 1]}
    write_state(tmp_path / "state", views)
    assert same(read_state(tmp_path / "state")[0], views)
    assert (tmp_path / "state").stat().st_size < 1000


def test_requires_grad_does_not_matter(tmp_path):
    write_state(tmp_path / "state", {"w": torch.ones(2, requires_grad=True)})
    assert torch.equal(read_state(tmp_path / "state")[0]["w"], torch.ones(2))


def test_every_flipped_byte_is_noticed(tmp_path):
    """In tensors, names, shapes, types, the JSON value and the checksum alike."""
    path = tmp_path / "state"
    write_state(path, {"w": torch.arange(3.0), "n": torch.tensor(2)}, info={"round": 1, "phase": "train"})
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        with pytest.raises(TornFile, match="damaged"):
            read_state(path)


@pytest.mark.parametrize("left", [0, 4, 8, 100, -1])
def test_truncated_files_are_noticed(tmp_path, left):
    path = tmp_path / "state"
    write_state(path, STATE)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(TornFile, match="damaged"):
        read_state(path)


def test_a_foreign_safetensors_file_is_no_state(tmp_path):
    (tmp_path / "state").write_bytes(save({"w": torch.ones(2)}))
    with pytest.raises(TornFile, match="checksum"):
        read_state(tmp_path / "state")


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path):
    """Permissions bind no root, so a folder stands in for what may not be read."""
    (tmp_path / "state").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        read_state(tmp_path / "state")
    assert error.value.filename == str(tmp_path / "state")
    with pytest.raises(FileNotFoundError) as error:
        read_state(tmp_path / "none")
    assert error.value.filename == str(tmp_path / "none")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state"
    write_state(path, STATE)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_bytes(path, b"new")
    assert same(read_state(path)[0], STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


names = st.text(min_size=1, max_size=120).filter(lambda name: name != "__metadata__")
tensors = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from(
        [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.int32]
    ),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, tensors, min_size=1, max_size=6))
def test_serialised_bytes_is_the_size_of_the_safetensors_message(state):
    assert serialised_bytes(state) == len(save(state))


def test_serialised_bytes_of_nothing_and_of_many():
    assert serialised_bytes({}) == 0
    many = {f"layer{i}.weight": torch.zeros(i, 3) for i in range(1, 300)}
    assert serialised_bytes(many) == len(save(many))


def test_info_is_json(tmp_path):
    write_state(tmp_path / "state", {}, info={"x": 1.1, "nothing": None})
    tensors, info = read_state(tmp_path / "state")
    assert tensors == {}
    assert json.dumps(info) == '{"x": 1.1, "nothing": null}'


def test_writers_of_one_file_at_once_do_not_take_each_others_half(tmp_path):
    """Processes of two containers that share a folder may have one number, as threads have."""
    contents = [bytes([n]) * 200_000 for n in range(6)]

    def write(content):
        for _ in range(20):
            write_bytes(tmp_path / "file", content, durable=False)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, contents))
    assert (tmp_path / "file").read_bytes() in contents
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
