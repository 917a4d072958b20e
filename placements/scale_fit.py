"""Fit scales of forecast seconds to measured ones: a factor for each phase and role on each device model.

The logarithm of a factor is a sum of three normal terms around 0: one of the device (all that the forecast misses alike
on this system), one of the phase there, and one of the role in that phase. So what was measured of one phase moves the
others too, by as much as they usually go together, and a small deviation moves them little. Weight syncs and host work
have a term of their own only. The posterior is found by Gauss-Newton steps; its interval is that of a normal around the
maximum (Laplace).

Not here: where the seconds are read from (`measured_runs`), and what a factor multiplies (`setting`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

from flowgraph.cluster.calibration import MAX_SCALE, MIN_SCALE, PHASES, Calibration, Phase, Scale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Key = tuple[Phase, str, str]
"""A phase, the role whose it is ("" for syncs and host work), and a device model."""

Term = tuple[str, ...]
"""A term of logarithms: of a device; of a phase and a device; or of a phase, a role and a device."""

DEVICE_SD, PHASE_SD, ROLE_SD = 0.25, 0.25, 0.10
"""Standard deviations of the terms, in logarithms. Together they put a factor between e^-0.6 and e^0.6 with 90%
probability before anything is measured. Source: published steps of RL frameworks (benchmarks/measured/rl_*.csv): the
means of five systems lie 0.26 from 0 (root mean square), the means of three phases of one system 0.27 from that of the
system. No table has two roles in one phase: 0.10 is assumed."""

ALONE_SD: Mapping[str, float] = {"sync": 0.4, "host": 0.7}
"""Standard deviation of the one term of a phase that no device model does. Source: 24 of 26 published weight syncs lie
within a factor of 2 of their forecast (docs/forecast.md), which is 0.39; of host work nothing is published, and the
shipped constants are estimates."""

NOISE_SD = 0.15
"""Standard deviation of what is measured around a scaled forecast, in logarithms. Source: the same tables, steps of one
model on one device model whose batch and lengths are stated: 0.06 to 0.16 (0.27 where lengths are guessed)."""

INTERVAL_SDS = 1.645  # on either side: 90% of a normal
STEPS, SETTLED = 20, 1e-6  # Gauss-Newton steps at most, and the move of a logarithm that is none
NUDGE = 1e-3  # of a logarithm, to see what moving it does to a forecast


@dataclass(frozen=True)
class Observation:
    """Seconds that were measured, and a function that forecasts them with the factors of these `keys`.

    `phase` is None for a whole step.
    """

    label: str
    seconds: float
    keys: tuple[Key, ...]
    forecast: Callable[[Calibration | None], float]
    phase: Phase | None = None

    def log_forecast(self, factors: Mapping[Key, float]) -> float:
        """Return the logarithm of the seconds forecast with these factors."""
        return log(self.forecast(calibration_of(factors)))


def fit_scales(observations: Sequence[Observation], source: str, *, noise_sd: float = NOISE_SD) -> Calibration:
    """Return the scales that forecast these observations best, shrunk towards 1, each with its 90% interval.

    Each device model that was measured gets a scale for every phase, and one for each role that was measured there.
    """
    import numpy as np

    keys = list(dict.fromkeys(key for each in observations for key in each.keys))
    terms = list(dict.fromkeys(term for key in keys for term in _terms(key)))
    design = np.array([[float(term in _terms(key)) for term in terms] for key in keys])
    weights = 1 / np.array([_sd(term) for term in terms]) ** 2
    found, precision = np.zeros(len(terms)), np.diag(weights)
    for _ in range(STEPS):
        missed, slopes = _linearized(observations, keys, design @ found)
        jacobian = slopes @ design
        precision = jacobian.T @ jacobian / noise_sd**2 + np.diag(weights)
        moved = np.linalg.solve(precision, jacobian.T @ (missed + jacobian @ found) / noise_sd**2) - found
        found = found + moved
        if np.max(np.abs(moved)) < SETTLED:
            break
    covariance: NDArray[np.float64] = np.linalg.inv(precision).astype(np.float64)
    posterior = _Posterior(dict(zip(terms, found.tolist(), strict=True)), terms, covariance)
    return Calibration(source=source, scales=tuple(_scales(posterior, keys, observations)))


def calibration_of(factors: Mapping[Key, float]) -> Calibration | None:
    """Return factors as a calibration without intervals; None if there are none."""
    scales = tuple(
        Scale(phase=phase, role=role, device=device, factor=factor, low=factor, high=factor)
        for (phase, role, device), factor in factors.items()
    )
    return Calibration(source="trial", scales=scales) if scales else None


def _terms(key: Key) -> tuple[Term, ...]:
    phase, role, device = key
    if phase in ALONE_SD:
        return ((phase, device),)
    own: tuple[Term, ...] = ((phase, role, device),) if role else ()
    return ((device,), (phase, device), *own)


def _sd(term: Term) -> float:
    return ALONE_SD.get(term[0]) or {1: DEVICE_SD, 2: PHASE_SD, 3: ROLE_SD}[len(term)]


def _linearized(
    observations: Sequence[Observation], keys: Sequence[Key], logs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far forecasts are below what was measured, in logarithms, and how they move with those of `keys`."""
    import numpy as np

    now = {key: _bounded(each) for key, each in zip(keys, logs.tolist(), strict=True)}
    missed, slopes = np.zeros(len(observations)), np.zeros((len(observations), len(keys)))
    for row, each in enumerate(observations):
        start = each.log_forecast(now)
        missed[row] = log(each.seconds) - start
        for column, key in enumerate(keys):
            if key in each.keys:
                nudged = now | {key: now[key] * exp(NUDGE)}
                slopes[row, column] = (each.log_forecast(nudged) - start) / NUDGE
    return missed, slopes


def _bounded(logarithm: float) -> float:
    """Return a factor within what a calibration may hold, with room to nudge it."""
    room = exp(2 * NUDGE)
    return exp(min(max(logarithm, log(MIN_SCALE * room)), log(MAX_SCALE / room)))


@dataclass(frozen=True)
class _Posterior:
    """The terms' means, and their covariance in the order of `terms`."""

    means: Mapping[Term, float]
    terms: Sequence[Term]
    covariance: NDArray[np.float64]

    def factor(self, wanted: Sequence[Term]) -> tuple[float, float, float]:
        """Return the factor of a sum of terms and its interval; a term that nothing tells of has its prior."""
        known = [self.terms.index(term) for term in wanted if term in self.means]
        prior = sum(_sd(term) ** 2 for term in wanted if term not in self.means)
        variance = float(sum(self.covariance[one, other] for one in known for other in known)) + prior
        mean, reach = sum(self.means.get(term, 0.0) for term in wanted), INTERVAL_SDS * variance**0.5
        factor = _bounded(mean)
        return factor, min(factor, exp(mean - reach)), max(factor, exp(mean + reach))


def _scales(posterior: _Posterior, keys: Sequence[Key], observations: Sequence[Observation]) -> list[Scale]:
    """Return the scale of each phase on each device, and of each role there that was measured."""
    found = list[Scale]()
    for device in dict.fromkeys(device for _, _, device in keys):
        for phase in PHASES:
            roles = [role for one, role, where in keys if (one, where) == (phase, device) and role]
            for role in ("", *roles):
                own = [each for each in observations if each.phase == phase and (phase, role, device) in each.keys]
                if role and not own:
                    continue
                factor, low, high = posterior.factor(_terms((phase, role, device)))
                counted = len(own) if role else _count(observations, phase, device)
                found.append(
                    Scale(
                        phase=phase, role=role, device=device, factor=factor, low=low, high=high, measurements=counted
                    )
                )
    return found


def _count(observations: Sequence[Observation], phase: Phase, device: str) -> int:
    return sum(
        each.phase == phase and any(key[0] == phase and key[2] == device for key in each.keys) for each in observations
    )
