"""A function of the user's own as a kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from medpfl.core.permitted_code import is_function
from medpfl.data.finding import Finding
from medpfl.data.kinds.kind import Kind

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.source import DataSource


class FunctionKind(Kind):
    """``module:function``, which returns one site's data."""

    name = "function"
    form = "data that a function reads"

    def is_here(self, data: str) -> bool:
        """See :class:`~medpfl.data.kinds.kind.Kind`: by how it is written; the module may lack it."""
        return is_function(data)

    def task(self, data: str, data_args: Mapping[str, Any]) -> str:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        return ""

    def check(self, data: str, data_args: Mapping[str, Any]) -> list[Finding]:
        """See :class:`~medpfl.data.kinds.kind.Kind`: only a run calls the function."""
        return [Finding("error", f"{data}: a function, which a run calls with a site's name: give a file or a folder")]

    def source(self, config: RunConfig) -> DataSource:
        """See :class:`~medpfl.data.kinds.kind.Kind`."""
        from medpfl.data.kinds.function.own_data import OwnData

        return OwnData(config)

    def fixed_sites(
        self, data: str, partition: str, data_args: Mapping[str, Any], held_out: int | str = 0
    ) -> int | None:
        """See :class:`~medpfl.data.kinds.kind.Kind`: the function is asked for as many sites as there are."""
        return None
