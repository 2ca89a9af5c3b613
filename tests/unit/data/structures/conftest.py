"""The makers of DICOM of the tests of CT are on the import path here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "ct"))
