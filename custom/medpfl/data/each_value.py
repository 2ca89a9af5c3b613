"""MONAI dictionary transforms of ours that change one value at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any

from monai.transforms import MapTransform


class EachValued(MapTransform):
    """Changes the value of each key by itself."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """See the class."""
        return {**data, **{key: self._changed(data[key]) for key in self.key_iterator(data)}}

    @abstractmethod
    def _changed(self, value: Any) -> Any:
        """What a value becomes."""
