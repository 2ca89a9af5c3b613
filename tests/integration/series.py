"""Series of (site, name, value, round): what results.json has, and what trackers wrote, by their own readers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

MEASURES = ("accuracy", "balanced_accuracy", "auroc")


def expected(results: dict) -> list:
    found = []
    for record in results["rounds"]:
        for site, values in record["sites"].items():
            series = {"train_loss": values.get("train_loss")}
            series |= {f"validation/{m}": values["validation"][m] for m in MEASURES if values.get("validation")}
            found += [(site, name, value, record["round"]) for name, value in series.items() if value is not None]
    return rounded(found)


def rounded(series: list) -> list:
    """Sorted and to six digits: TensorBoard keeps single precision."""
    return sorted((site, name, float(f"{value:.6g}"), round_) for site, name, value, round_ in series)


def tensorboard(folder: Path) -> list:
    """Of ``tb_events``."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for site in folder.iterdir():
        events = EventAccumulator(str(site)).Reload()
        for name in events.Tags()["scalars"]:
            found += [(site.name, name, event.value, event.step) for event in events.Scalars(name)]
    return rounded(found)


def mlflow(database: Path) -> list:
    """Of ``mlflow.db``, whose runs' names begin with the site's."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    found = []
    for run in client.search_runs([e.experiment_id for e in client.search_experiments()]):
        for name in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, name)
            found += [(run.info.run_name[: len("site-1")], name, point.value, point.step) for point in history]
    return rounded(found)


def wandb(folder: Path) -> list:
    """Of the folder ``wandb``, whose runs' names begin with the site's."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for file in folder.glob("offline-run-*/run-*.wandb"):
        records = [Record.FromString(content) for content in _log_records(file.read_bytes())]
        (name,) = {record.run.display_name for record in records if record.WhichOneof("record_type") == "run"}
        for record in records:
            if record.WhichOneof("record_type") == "history":
                values = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                step = values["_step"]
                found += [(name[: len("site-1")], k, v, step) for k, v in values.items() if not k.startswith("_")]
    return rounded(found)


def _log_records(content: bytes) -> Iterator[bytes]:
    """Records of LevelDB's log format: pieces of blocks of 32 KiB, after Weights & Biases' seven bytes."""
    assert content.startswith(b":W&B")
    position, whole = 7, b""
    while position + 7 <= len(content):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # complete, or the last piece
            yield whole
            whole = b""
