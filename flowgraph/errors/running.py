"""Errors of where a flow runs: plans, clusters, memory, processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowgraph.errors.base import FlowError, nearest


class PlanError(FlowError, ValueError):
    """A plan that cannot be read, that is not for this graph, or that no engine can run."""

    @classmethod
    def unreadable(cls, where: str, place: str, why: str) -> PlanError:
        """Report which place of a file is wrong in a plan, and why."""
        return cls(f"{place}: {why}" if place else why, where=where)

    @classmethod
    def unknown_key(cls, where: str, place: str, key: str, names: Iterable[str]) -> PlanError:
        """Report which key is unknown, and name the nearest."""
        return cls(f"{place}: a plan has no `{key}` here", where=where, hint=nearest(key, names))

    @classmethod
    def other_graph(cls, where: str, planned: str, planned_hash: str, flow: str, flow_hash: str) -> PlanError:
        """Report which structure a plan is for, and which the flow has."""
        notes = [f"plan: {planned} {planned_hash[:16]}", f"flow: {flow} {flow_hash[:16]}"]
        what = "this plan is for another structure" if planned == flow else f"a plan of {planned}, not of {flow}"
        hint = "plan this flow again" if planned == flow else f"flowgraph plan {flow}, or run without a flow"
        return cls(what, where=where, notes=notes, hint=hint)

    @classmethod
    def unknown(cls, where: str, what: str, name: str, names: Iterable[str]) -> PlanError:
        """Report which name is unknown, and name the nearest."""
        return cls(f"no {what} `{name}`", where=where, hint=nearest(name, names))

    @classmethod
    def twice(cls, where: str, what: str, name: str, verb: str) -> PlanError:
        """Report what is placed or named more than once."""
        return cls(f"the {what} `{name}` is {verb} twice", where=where)

    @classmethod
    def not_placed(cls, where: str, roles: Sequence[str]) -> PlanError:
        """Report which roles of the flow have no place."""
        return cls(f"not placed: {', '.join(roles)}", where=where, hint="each role of the flow is placed once")

    @classmethod
    def shared_device(cls, where: str, device: str, first: str, second: str) -> PlanError:
        """Report which device two pools hold."""
        hint = "roles share a pool, not a device"
        return cls(f"{device} is in two pools, `{first}` and `{second}`", where=where, hint=hint)

    @classmethod
    def too_few_devices(cls, where: str, role: str, layout: str, needs: int, has: int) -> PlanError:
        """Report how many devices a layout takes, and how many its pool has."""
        counted = f"{needs} device{'' if needs == 1 else 's'}"
        return cls(f"{role}: {layout} takes {counted}, its pool has {has}", where=where)

    @classmethod
    def not_offered(cls, where: str, role: str, engine: str, what: str, runs: str) -> PlanError:
        """Report what an engine does not run, and what it does."""
        return cls(f"{role}: the engine `{engine}` does not run {what}", where=where, hint=runs)

    @classmethod
    def not_spread(cls, where: str, role: str, expert: int, has: str) -> PlanError:
        """Report over how many ranks a role spreads its experts, and why they do not go into these."""
        hint = "experts go in equal parts to equal parts of the ranks: `expert` divides both"
        return cls(f"{role}: expert={expert}, but {has}", where=where, hint=hint)

    @classmethod
    def not_together(cls, where: str, node: str, at: str, first: str, second: str) -> PlanError:
        """Report which node reads models that the plan places on different homes."""
        hint = "place both on one pool, with the same data="
        what = f"{node} reads models on {first} and on {second}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint=hint)

    @classmethod
    def not_split(cls, where: str, node: str, at: str, ranks: int) -> PlanError:
        """Report which node needs the whole batch, but is split."""
        what = f"{node} reads all rows together, so it cannot be split over data={ranks}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint="place its role with data=1")

    @classmethod
    def not_supported(cls, where: str, flow: str, names: Sequence[str]) -> PlanError:
        """Report what a plan names that can be forecast and exported, but not run here."""
        first, *rest = names
        what = f"this plan of {flow} names {first}, which cannot be run here"
        notes = [f"nor {name}" for name in rest]
        option = "--staleness" if first == "steps that overlap" else "--engine"
        return cls(what, where=where, notes=notes, hint=f"plan it without {option}, or `flowgraph export` it")

    @classmethod
    def lags_too_far(cls, where: str, role: str, lag: int, node: str, at_most: int, at: str) -> PlanError:
        """Report how far a role would lag, and how far a node of it may."""
        may = f"weights at most {at_most} update{'s' if at_most > 1 else ''} old" if at_most else "the newest weights"
        hint = f"lag={at_most} at most" if at_most else "in the flow, stale(model, at_most=…) lets a generate node lag"
        what = f"{role}: lag={lag}, but {node} reads {may}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint=hint)

    @classmethod
    def lags_in_place(cls, where: str, role: str, lag: int, why: str) -> PlanError:
        """Report why a role has no copy of weights that could lag."""
        hint = "leave lag out, or place it in another pool, engine or layout than training"
        return cls(f"{role}: lag={lag}, but {why}, so no copy could lag", where=where, hint=hint)


class ClusterError(FlowError, ValueError):
    """A cluster that cannot be read from its short form or its file."""

    @classmethod
    def unreadable(cls, where: str, place: str, why: str, hint: str = "") -> ClusterError:
        """Report why a text or file describes no cluster; `place` is in the file."""
        return cls(f"{place}: {why}" if place else why, where=where, hint=hint)

    @classmethod
    def unknown_key(cls, where: str, place: str, key: str, names: Iterable[str]) -> ClusterError:
        """Report which key is unknown, and name the nearest."""
        return cls(f"{place}: a cluster has no `{key}` here", where=where, hint=nearest(key, names))


class ResourceError(FlowError, MemoryError):
    """A run that does not fit on the devices it is given."""

    @classmethod
    def no_placement(cls, flow: str, on: str, overflow: str, notes: Sequence[str], hint: str) -> ResourceError:
        """Report which role overflows its device in which phase, what it holds, and the smallest changes that fit."""
        return cls(f"no placement for {flow} on {on}: {overflow}", notes=notes, hint=hint)

    @classmethod
    def not_here(cls, what: str, needs: str, has: str, hint: str = "") -> ResourceError:
        """Report what a plan needs, and what this machine has."""
        return cls(f"the plan counts on {needs}; {has}", where=what, hint=hint)


_ENDED = "out of memory, a crash in native code, or killed; `flowgraph plan` forecasts memory"


class WorkerError(FlowError, RuntimeError):
    """A process of a run that ended, is stuck, or could not start."""

    @classmethod
    def died(cls, worker: str, doing: Sequence[str], how: Sequence[str]) -> WorkerError:
        """Report which process ended, its task, and how it ended if that is known."""
        notes = [*(f"it was to run {task}" for task in doing[:1]), *how]
        return cls(f"{worker} ended while the run needed it", notes=notes, hint=_ENDED)

    @classmethod
    def stuck(cls, worker: str, doing: Sequence[str], waited_s: float) -> WorkerError:
        """Report which process does not answer, and its task."""
        what = f"{worker} does not answer for {waited_s:.0f} s: it is stopped, or its machine is not reached"
        return cls(what, notes=[f"it was to run {task}" for task in doing[:1]])

    @classmethod
    def overdue(
        cls, worker: str, doing: str, limit_s: float, waiting: Sequence[str], stacks: Sequence[str]
    ) -> WorkerError:
        """Report which task does not finish, which tasks wait for it, and the stacks of the processes."""
        behind = [f"behind it waits {task}" for task in waiting[:3]]
        hint = f"it was given {limit_s:.0f} s, by what the plan forecasts or by how long it took before"
        return cls(f"{worker} does not finish {doing}", notes=[*behind, *stacks], hint=hint)

    @classmethod
    def stopped(cls, worker: str, doing: Sequence[str]) -> WorkerError:
        """Report which process a signal has stopped, and its task."""
        return cls(f"{worker} is stopped, as by SIGSTOP", notes=[f"it was to run {task}" for task in doing[:1]])

    @classmethod
    def failed(cls, doing: str, error: str) -> WorkerError:
        """Report what failed for a reason outside the user's code."""
        lines = [line for line in error.strip().splitlines() if line.strip()]
        return cls(f"{doing} failed: {lines[-1].strip() if lines else 'no reason given'}", notes=lines[-6:-1])

    @classmethod
    def not_started(cls, what: str, why: str, hint: str = "") -> WorkerError:
        """Report what could not be started, and why."""
        return cls(f"{what} could not be started: {why}", hint=hint)
