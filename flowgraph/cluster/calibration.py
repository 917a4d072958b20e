"""A calibration as data: by how much measured seconds differ from the forecast, for each phase, role and device.

Not here: how the scales are fitted (`placements.scale_fit`), and where measured seconds are read from.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from flowgraph.cluster.cluster import Data, dotted
from flowgraph.errors import DataError, nearest
from flowgraph.files.untrusted import json_as

Phase = Literal["generate", "forward", "update", "sync", "host"]
"""What a scale is for: sampling, passes without gradients, training, weight syncs, and nodes that run no model."""

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
MIN_SCALE, MAX_SCALE = 1e-3, 1e3  # beyond these the seconds are of another plan, or not seconds

Factor = Annotated[float, Field(ge=MIN_SCALE, le=MAX_SCALE, allow_inf_nan=False)]


class Scale(Data):
    """The factor of one phase on one device model, of one role or, where `role` is "", of all other roles.

    The true factor lies between `low` and `high` with 90% probability. `measurements` counts those that name this
    phase; 0 where only other phases, or whole steps, tell about it.
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
        """Return what tells scales apart: phase, role and device."""
        return self.phase, self.role, self.device

    @model_validator(mode="after")
    def _ordered(self) -> Scale:
        if not self.low <= self.factor <= self.high:
            raise ValueError("the factor must lie between `low` and `high`")
        return self


class Calibration(Data):
    """Scales of forecast seconds, and what they were fitted to: runs, logs, or seconds from a command line."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_version: Literal[1] = Field(default=1, validation_alias="schema", serialization_alias="schema")
    source: Annotated[str, Field(min_length=1)]
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _unique(self) -> Calibration:
        keys = [scale.key for scale in self.scales]
        if twice := next((key for place, key in enumerate(keys) if key in keys[:place]), None):
            raise ValueError(f"the scale of {' '.join(filter(None, twice))} is stated twice")
        return self

    def scale_of(self, phase: Phase, role: str, device: str) -> Scale | None:
        """Return the scale of a role's phase on a device, else that of any role; None for a device without scales."""
        by_key = {scale.key: scale for scale in self.scales}
        return by_key.get((phase, role, device)) or by_key.get((phase, "", device))

    def factor_of(self, phase: Phase, role: str, device: str) -> float:
        """Return the factor of a role's phase on a device; 1 where nothing was measured on such devices."""
        scale = self.scale_of(phase, role, device)
        return 1.0 if scale is None else scale.factor

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device models that have scales."""
        return tuple(dict.fromkeys(scale.device for scale in self.scales))

    def to_json(self) -> str:
        """Return it as JSON, which `from_json` reads."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "calibration") -> Calibration:
        """Return the calibration of a JSON text; `where` is the file's name. Raises DataError for any other text."""
        try:
            return json_as(cls, text)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = dotted(fault["loc"])
            what = f"{place}: {fault['msg']}" if place else str(fault["msg"])
            known = [str(field.validation_alias or name) for name, field in cls.model_fields.items()]
            unknown = fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1
            hint = nearest(place, known) if unknown else "`calibrate RUN -o FILE` writes a calibration"
            raise DataError.unusable(where, f"is not a calibration: {what}", hint) from None
        except ValueError as error:
            hint = "`calibrate RUN -o FILE` writes a calibration"
            raise DataError.unusable(where, f"is not a calibration: it is not JSON: {error}", hint) from None
