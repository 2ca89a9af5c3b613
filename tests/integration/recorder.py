"""A receiver like FLARE's for TensorBoard, MLflow and Weights & Biases, that writes lines of JSON."""

import json
from pathlib import Path

from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.app_common.widgets.streaming import AnalyticsReceiver


class Recorder(AnalyticsReceiver):
    def __init__(self):
        super().__init__(events=["fed.analytix_log_stats"])  # as MLflow's

    def initialize(self, fl_ctx):
        self.file = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / "recorded.jsonl"

    def save(self, fl_ctx, shareable, record_origin):
        data = AnalyticsData.from_dxo(from_shareable(shareable))
        with open(self.file, "a") as lines:
            lines.write(json.dumps([record_origin, data.tag, data.value, data.step]) + "\n")

    def finalize(self, fl_ctx):
        with open(self.file, "a") as lines:
            lines.write(json.dumps("end") + "\n")
