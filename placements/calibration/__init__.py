"""Measured seconds, and the scales and constants that are fitted to them."""

from placements.calibration.measured_runs import CalibrationResult, MeasuredRun
from placements.calibration.measured_runs import repair as calibrate
from placements.calibration.profiles import constants_in, read_profile
from placements.calibration.timing_logs import KNOWN
from placements.calibration.timing_names import logged_timings
from placements.calibration.timings import given_timings, recorded_timings

__all__ = [
    "KNOWN",
    "CalibrationResult",
    "MeasuredRun",
    "calibrate",
    "constants_in",
    "given_timings",
    "logged_timings",
    "read_profile",
    "recorded_timings",
]
