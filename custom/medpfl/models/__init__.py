"""Networks: those of the papers, MONAI's, and the user's own; and what their layers are. Knows nothing of FLARE."""

from medpfl.models.factory import ModelRow, build_model, model_rows, takes_argument
from medpfl.models.outputs import logits, with_features

__all__ = ["ModelRow", "build_model", "logits", "model_rows", "takes_argument", "with_features"]
