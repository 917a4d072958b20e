"""A calibration as data: the ratio of measured to forecast seconds, for each phase, role and device.

Not here: the fit of the scales (`placements.calibration.fit_scales`), and the readers of measured seconds.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from flowgraph.cluster.cluster import Data, dotted, key_names
from flowgraph.errors import DataError, nearest
from flowgraph.files.untrusted import json_as

Phase = Literal["generate", "forward", "update", "sync", "host"]
"""The phases: sampling, passes without gradients, training, weight syncs, and nodes that run no model."""

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
MIN_SCALE, MAX_SCALE = 1e-3, 1e3  # beyond these the seconds are of another plan, or not seconds

Factor = Annotated[float, Field(ge=MIN_SCALE, le=MAX_SCALE, allow_inf_nan=False)]


class Scale(Data):
    """The ratio of measured to forecast seconds (`factor`) of one phase on one device model, for one role.

    If `role` is "", the factor is for all roles without a separate scale. The true factor lies between `low` and `high`
    with 90% probability. `measurements` counts the measurements of this phase; 0 if the factor comes only from other
    phases or whole steps.
    """

    phase: Phase
    device: Annotated[str, Field(min_length=1)]
    role: str = ""
    factor: Factor
    low: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    high: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    measurements: NonNegativeInt = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Return (phase, role, device), which identifies a scale in its calibration."""
        return self.phase, self.role, self.device

    @model_validator(mode="after")
    def _ordered(self) -> Scale:
        if not self.low <= self.factor <= self.high:
            raise ValueError("the factor must lie between `low` and `high`")
        return self


class Calibration(Data):
    """Scales of forecast seconds, and the source of the measurements: runs, logs, or a command line."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_version: Literal[1] = Field(default=1, validation_alias="schema", serialization_alias="schema")
    source: Annotated[str, Field(min_length=1)]
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _unique(self) -> Calibration:
        keys = [scale.key for scale in self.scales]
        if twice := next((key for place, key in enumerate(keys) if key in keys[:place]), None):
            raise ValueError(f"the scale of {' '.join(filter(None, twice))} is given twice")
        return self

    def scale_of(self, phase: Phase, role: str, device: str) -> Scale | None:
        """Return the scale of a role's phase on a device model, else the scale for all roles; None without either."""
        by_key = {scale.key: scale for scale in self.scales}
        return by_key.get((phase, role, device)) or by_key.get((phase, "", device))

    def factor_of(self, phase: Phase, role: str, device: str) -> float:
        """Return the ratio of measured to forecast seconds of a role's phase on a device model; 1.0 if unknown."""
        scale = self.scale_of(phase, role, device)
        return 1.0 if scale is None else scale.factor

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device models that have scales, each once, in the order of the scales."""
        return tuple(dict.fromkeys(scale.device for scale in self.scales))

    def to_json(self) -> str:
        """Return the calibration as JSON text, in the form that `from_json` reads."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "calibration") -> Calibration:
        """Return the calibration in a JSON text. Raises DataError, which names the file `where`, for any other text."""
        hint = "`calibrate RUN -o FILE` writes a calibration"
        try:
            return json_as(cls, text)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = dotted(fault["loc"])
            what = f"{place}: {fault['msg']}" if place else str(fault["msg"])
            if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
                hint = nearest(place, key_names(cls))
        except ValueError as error:
            what = f"it is not JSON: {error}"
        raise DataError.unusable(where, f"is not a calibration: {what}", hint)
