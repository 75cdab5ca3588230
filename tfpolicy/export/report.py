"""What an import of weights did: which weight came from where, and what was not loaded."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ImportReport:
    """What went where.

    Attributes:
        loaded: For each of the policy's weights that was assigned the name of its source.
        by: Whether they were matched by "name" or by "order".
        missing: Weights that were asked for, but nothing came; they keep their values.
        mis_shaped: For each weight that came in another shape its name and both shapes; they keep
            their values.
        unexpected: Names that came and belong to nothing.
        left_out: Names that came and were not asked for, or that nothing reads.
        notes: How values were changed on the way, and why others were left out.
    """

    loaded: dict[str, str]
    by: Literal["name", "order"] = "name"
    missing: tuple[str, ...] = ()
    mis_shaped: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all that was asked for was loaded, and all that came was known."""
        return not (self.missing or self.unexpected or self.mis_shaped)

    def __str__(self) -> str:
        """One line for each weight, and one for each kind of what was not loaded."""
        lines = [f"{len(self.loaded)} weights loaded by {self.by}:"]
        lines += [f"  {name} <- {source}" for name, source in self.loaded.items()]
        for title, names in (
            ("missing", self.missing),
            ("mis-shaped", self.mis_shaped),
            ("unexpected", self.unexpected),
            ("left out", self.left_out),
        ):
            lines += [f"{len(names)} {title}: {', '.join(names)}"] if names else []
        return "\n".join([*lines, *self.notes])
