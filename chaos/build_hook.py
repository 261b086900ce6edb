"""Hook of hatchling that adds the simulator to the wheel of the proof.

`force-include` in `pyproject.toml` would copy the simulator into an editable installation as well. After a change of
the simulator, tests would go on with the copy.
"""

from __future__ import annotations

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SimulatorHook(BuildHookInterface):
    """Adds `simulation/dledger_sim`, which lies beside this folder, to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, dict[str, str]]) -> None:
        """Choose the files before a build of `version`, "standard" or "editable"."""
        if version == "standard":
            build_data["force_include"]["../simulation/dledger_sim"] = "dledger_sim"
