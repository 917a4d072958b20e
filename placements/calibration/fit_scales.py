"""Fit scales of forecast seconds to measured ones: a factor for each phase and role on each device model.

The logarithm of a factor is a sum of three normal terms around 0: one of the device (errors that all forecasts on this
system share), one of the phase there, and one of the role in that phase. So a measurement of one phase moves the others
too, by as much as they usually go together, and a small deviation moves them little. Weight syncs and host work each
have only one term. The posterior is computed by Gauss-Newton steps; its interval is that of a normal around the maximum
(Laplace).

Not here: reading the seconds (`measured_runs`), and the seconds that a factor scales (`workload.planning_problem`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

from flowgraph.cluster.calibration import MAX_SCALE, MIN_SCALE, PHASES, Calibration, Phase, Scale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Key = tuple[Phase, str, str]
"""A phase, its role ("" for syncs and host work), and a device model."""

Term = tuple[str, ...]
"""A term of logarithms: of a device; of a phase and a device; or of a phase, a role and a device."""

DEVICE_SD, PHASE_SD, ROLE_SD = 0.25, 0.25, 0.10
"""Standard deviations of the terms, in logarithms. Together they put a factor between e^-0.6 and e^0.6 with 90%
probability before anything is measured. Source: published steps of RL frameworks (benchmarks/measured/rl_*.csv): the
means of five systems lie 0.26 from 0 (root mean square), the means of three phases of one system 0.27 from that of the
system. No table has two roles in one phase: 0.10 is assumed."""

ALONE_SD: Mapping[str, float] = {"sync": 0.4, "host": 0.7}
"""Standard deviation of the one term of a phase that does not run on a device. Source: 24 of 26 published weight syncs
lie within a factor of 2 of their forecast (docs/forecast.md), which is 0.39; nothing is published about host work, and
the shipped constants are estimates."""

NOISE_SD = 0.15
"""Standard deviation of measurements around a scaled forecast, in logarithms. Source: the same tables, steps of one
model on one device model whose batch and lengths are stated: 0.06 to 0.16 (0.27 where lengths are guessed)."""

INTERVAL_SDS = 1.645  # on either side: 90% of a normal
STEPS, SETTLED = 20, 1e-6  # maximum of Gauss-Newton steps, and the move of a logarithm below which they end
NUDGE = 1e-3  # of a logarithm, to measure its effect on a forecast


@dataclass(frozen=True)
class Observation:
    """Measured seconds, and a function that forecasts them, given a calibration with scales of these `keys`.

    `label` names the measurement in texts. `phase` is None for a whole step, and for nodes of several phases that were
    timed together.
    """

    label: str
    seconds: float
    keys: tuple[Key, ...]
    forecast: Callable[[Calibration | None], float]
    phase: Phase | None = None

    def log_forecast(self, factors: Mapping[Key, float]) -> float:
        """Return the natural logarithm of the forecast seconds, scaled by `factors`; without factors, unscaled.

        Raises ValueError if the forecast is 0 seconds, or if a factor is outside 0.001 to 1000.
        """
        return log(self.forecast(calibration_of(factors)))


def fit_scales(observations: Sequence[Observation], source: str, *, noise_sd: float = NOISE_SD) -> Calibration:
    """Return the most probable scales of forecasts, given measured seconds, as a calibration with 90% intervals.

    Each measured device model gets a scale for every phase, and one for each role in a phase if some observation is of
    this phase alone and includes the role; priors keep scales near 1. There must be at least one observation. `source`
    describes the measurement. `noise_sd` is the standard deviation of the logarithm of a measurement. Raises ValueError
    unless all measured and forecast seconds are above 0.
    """
    import numpy as np

    keys = list(dict.fromkeys(key for observation in observations for key in observation.keys))
    terms = list(dict.fromkeys(term for key in keys for term in _terms(key)))
    design = np.array([[float(term in _terms(key)) for term in terms] for key in keys])
    weights = 1 / np.array([_sd(term) for term in terms]) ** 2
    means, precision = np.zeros(len(terms)), np.diag(weights)
    for _ in range(STEPS):
        missed, slopes = _linearized(observations, keys, design @ means)
        jacobian = slopes @ design
        precision = jacobian.T @ jacobian / noise_sd**2 + np.diag(weights)
        moved = np.linalg.solve(precision, jacobian.T @ (missed + jacobian @ means) / noise_sd**2) - means
        means = means + moved
        if np.max(np.abs(moved)) < SETTLED:
            break
    covariance: NDArray[np.float64] = np.linalg.inv(precision).astype(np.float64)
    posterior = _Posterior(dict(zip(terms, means.tolist(), strict=True)), terms, covariance)
    return Calibration(source=source, scales=tuple(_scales(posterior, keys, observations)))


def calibration_of(factors: Mapping[Key, float]) -> Calibration | None:
    """Return a calibration with these factors and without uncertainty: `low` and `high` of each scale are its factor.

    Returns None if `factors` is empty. Raises pydantic's ValidationError for a factor outside 0.001 to 1000.
    """
    scales = tuple(
        Scale(phase=phase, role=role, device=device, factor=factor, low=factor, high=factor)
        for (phase, role, device), factor in factors.items()
    )
    return Calibration(source="trial", scales=scales) if scales else None


def _terms(key: Key) -> tuple[Term, ...]:
    phase, role, device = key
    if phase in ALONE_SD:
        return ((phase, device),)
    role_terms: tuple[Term, ...] = ((phase, role, device),) if role else ()
    return ((device,), (phase, device), *role_terms)


def _sd(term: Term) -> float:
    return ALONE_SD.get(term[0]) or {1: DEVICE_SD, 2: PHASE_SD, 3: ROLE_SD}[len(term)]


def _linearized(
    observations: Sequence[Observation], keys: Sequence[Key], logs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far forecasts are below measurements, in logarithms, and their slopes by the logarithms of `keys`."""
    import numpy as np

    factors = {key: _bounded(logarithm) for key, logarithm in zip(keys, logs.tolist(), strict=True)}
    missed, slopes = np.zeros(len(observations)), np.zeros((len(observations), len(keys)))
    for row, observation in enumerate(observations):
        start = observation.log_forecast(factors)
        missed[row] = log(observation.seconds) - start
        for column, key in enumerate(keys):
            if key in observation.keys:
                nudged = factors | {key: factors[key] * exp(NUDGE)}
                slopes[row, column] = (observation.log_forecast(nudged) - start) / NUDGE
    return missed, slopes


def _bounded(logarithm: float) -> float:
    room = exp(2 * NUDGE)
    return exp(min(max(logarithm, log(MIN_SCALE * room)), log(MAX_SCALE / room)))


@dataclass(frozen=True)
class _Posterior:
    means: Mapping[Term, float]
    terms: Sequence[Term]
    covariance: NDArray[np.float64]

    def factor(self, terms: Sequence[Term]) -> tuple[float, float, float]:
        rows = [self.terms.index(term) for term in terms if term in self.means]
        prior = sum(_sd(term) ** 2 for term in terms if term not in self.means)
        variance = float(sum(self.covariance[row, column] for row in rows for column in rows)) + prior
        mean, reach = sum(self.means.get(term, 0.0) for term in terms), INTERVAL_SDS * variance**0.5
        factor = _bounded(mean)
        return factor, min(factor, exp(mean - reach)), max(factor, exp(mean + reach))


def _scales(posterior: _Posterior, keys: Sequence[Key], observations: Sequence[Observation]) -> Iterator[Scale]:
    for device in dict.fromkeys(device for _, _, device in keys):
        for phase in PHASES:
            roles = [role for key_phase, role, key_device in keys if (key_phase, key_device) == (phase, device)]
            measured = [observation for observation in observations if observation.phase == phase]
            for role in dict.fromkeys(("", *roles)):
                matching = {(phase, role, device)} if role else {key for key in keys if key[::2] == (phase, device)}
                count = sum(not matching.isdisjoint(observation.keys) for observation in measured)
                if count or not role:
                    factor, low, high = posterior.factor(_terms((phase, role, device)))
                    scale = {"factor": factor, "low": low, "high": high}
                    yield Scale(phase=phase, role=role, device=device, measurements=count, **scale)
