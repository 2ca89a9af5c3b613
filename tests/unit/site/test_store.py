import pytest
import torch
from tiny import same

from medpfl.algorithms import RESERVED
from medpfl.core.errors import TornFile
from medpfl.site import rival, start
from medpfl.site import store as stores
from medpfl.site.store import DiskStore, MemoryStore, keep_latest

STATE = {"norm.weight": torch.tensor([1.0, 2.0]), "norm.num_batches_tracked": torch.tensor(3)}


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path / "deep" / "site-1", durable=False)


def test_no_part_of_a_method_takes_the_name_of_a_sites_own_state():
    """It would write over the site's model, or the other way round."""
    kinds = {v for module in (stores, rival, start) for n, v in vars(module).items() if n.isupper() and type(v) is str}
    assert "alone_optimizer" in kinds
    assert kinds - {start.START} == RESERVED


def test_states_by_kind_and_round(store):
    store.put("personal", 1, STATE)
    store.put("model", 1, {"w": torch.zeros(1)})
    assert same(store.get("personal", 1), STATE)
    assert same(store.get("model", 1), {"w": torch.zeros(1)})
    assert store.get("personal", 2) is None
    assert store.get("other", 1) is None


def test_a_later_state_of_the_round_replaces_the_earlier(store):
    store.put("model", 1, {"w": torch.zeros(1)})
    store.put("model", 1, {"w": torch.ones(1)})
    assert store.get("model", 1)["w"].item() == 1


def test_keep_drops_the_other_rounds_of_that_kind_only(store):
    for round_ in (1, 2, 10, 11):
        store.put("model", round_, {"w": torch.full((1,), float(round_))})
        store.put("personal", round_, STATE)
    store.keep("model", (2, 11, 99))
    assert [r for r in range(12) if store.get("model", r)] == [2, 11]
    assert [r for r in range(12) if store.get("personal", r)] == [1, 2, 10, 11]


def test_a_name_that_begins_as_another_is_another(store):
    store.put("model-anchor", 3, STATE)
    store.put("model", 1, STATE)
    assert store.rounds("model") == [1] and store.rounds("model-anchor") == [3]
    store.keep("model", ())
    assert store.rounds("model") == [] and same(store.get("model-anchor", 3), STATE)


def test_what_a_killed_write_left_goes(tmp_path):
    store = DiskStore(tmp_path, durable=False)
    (tmp_path / ".model-000002.safetensors.4711.tmp").write_bytes(b"half")
    (tmp_path / ".personal-000002.safetensors.4711.tmp").write_bytes(b"half")
    store.put("model", 2, STATE)
    store.keep("model", (2,))
    assert {file.name for file in tmp_path.iterdir()} == {
        "model-000002.safetensors",
        ".personal-000002.safetensors.4711.tmp",
    }


def test_an_empty_state_is_not_no_state(store):
    """A method without personal state has an empty one, which must not be taken for a missing one."""
    store.put("personal", 3, {})
    assert store.get("personal", 3) == {}


def test_states_on_disk_outlive_the_store(tmp_path):
    DiskStore(tmp_path, durable=True).put("personal", 4, STATE)
    assert same(DiskStore(tmp_path, durable=True).get("personal", 4), STATE)


def test_a_torn_state_is_noticed(tmp_path):
    store = DiskStore(tmp_path, durable=False)
    store.put("personal", 1, STATE)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TornFile):
        store.get("personal", 1)


@pytest.mark.parametrize(
    ("counted", "kept"), [((), [6, 7, 8]), ((1, 5), [1, 5, 6, 7, 8]), ((3, 4), [2, 6, 7, 8]), ((7,), [6, 7, 8])]
)
def test_the_last_two_stay_and_what_answers_that_counted_began_with(store, counted, kept):
    """Of rounds that the site missed, 3 and 4, the last one before."""
    for round_ in (1, 2, 5, 6, 7, 8):
        store.put("personal", round_, STATE)
    keep_latest(store, "personal", 8, counted)
    assert store.rounds("personal") == kept
