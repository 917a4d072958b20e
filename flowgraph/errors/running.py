"""Errors of planning and running a flow: plans, clusters, memory, processes, run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowgraph.errors.base import FlowError, nearest
from flowgraph.errors.language import allowed_weights, pipeline_text, smaller_pipeline


class PlanError(FlowError, ValueError):
    """A plan that cannot be read, that is not for this graph, or that no engine can run."""

    @classmethod
    def unreadable(cls, where: str, place: str, why: str) -> PlanError:
        """Return the error for a plan's file that is wrong at `place`, "" for the whole file, with the reason."""
        return cls(f"{place}: {why}" if place else why, where=where)

    @classmethod
    def unknown_key(cls, where: str, place: str, key: str, names: Iterable[str]) -> PlanError:
        """Return the error for an unknown key in a plan's file; the hint is `nearest(key, names)`."""
        return cls(f"{place}: a plan has no `{key}` here", where=where, hint=nearest(key, names))

    @classmethod
    def other_graph(cls, where: str, planned: str, planned_hash: str, flow: str, flow_hash: str) -> PlanError:
        """Return the error for a plan whose structure hash differs from the flow's; `planned` names the plan's flow."""
        notes = [f"plan: {planned} {planned_hash[:16]}", f"flow: {flow} {flow_hash[:16]}"]
        what = "this plan is for another structure" if planned == flow else f"a plan of {planned}, not of {flow}"
        hint = "plan this flow again" if planned == flow else f"flowgraph plan {flow}, or run without a flow"
        return cls(what, where=where, notes=notes, hint=hint)

    @classmethod
    def unknown(cls, where: str, what: str, name: str, names: Iterable[str]) -> PlanError:
        """Return the error for an unknown name of the kind `what` in a plan; the hint is `nearest(name, names)`."""
        return cls(f"no {what} `{name}`", where=where, hint=nearest(name, names))

    @classmethod
    def twice(cls, where: str, what: str, name: str, verb: str) -> PlanError:
        """Return the error for a name that a plan has twice; `what` is "pool" or "role", `verb` "named" or "placed"."""
        return cls(f"the {what} `{name}` is {verb} twice", where=where)

    @classmethod
    def not_placed(cls, where: str, roles: Sequence[str]) -> PlanError:
        """Return the error for roles of the flow that the plan does not place."""
        return cls(f"not placed: {', '.join(roles)}", where=where, hint="each role of the flow is placed once")

    @classmethod
    def shared_device(cls, where: str, device: str, first: str, second: str) -> PlanError:
        """Return the error for a device that is in two pools."""
        hint = "roles share a pool, not a device"
        return cls(f"{device} is in two pools, `{first}` and `{second}`", where=where, hint=hint)

    @classmethod
    def too_few_devices(cls, where: str, role: str, layout: str, needs: int, has: int) -> PlanError:
        """Return the error for a layout that needs `needs` devices, while its pool has `has`."""
        counted = f"{needs} device{'' if needs == 1 else 's'}"
        return cls(f"{role}: {layout} takes {counted}, its pool has {has}", where=where)

    @classmethod
    def not_offered(cls, where: str, role: str, engine: str, what: str, runs: str) -> PlanError:
        """Return the error for a feature `what` that an engine does not run; the hint `runs` says what it runs."""
        return cls(f"{role}: the engine `{engine}` does not run {what}", where=where, hint=runs)

    @classmethod
    def not_spread(cls, where: str, role: str, expert: int, has: str) -> PlanError:
        """Return the error for an `expert` degree that does not divide a role's experts or ranks, as `has` says."""
        hint = "experts are split equally over ranks, so `expert` must divide both"
        return cls(f"{role}: expert={expert}, but {has}", where=where, hint=hint)

    @classmethod
    def not_together(cls, where: str, node: str, at: str, first: str, second: str) -> PlanError:
        """Return the error for a node that reads models which the plan places on different homes.

        A home is a pool, layout and engine; `at` is the node's line in the flow.
        """
        hint = "place both on one pool, with the same data="
        what = f"{node} reads models on {first} and on {second}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint=hint)

    @classmethod
    def not_split(cls, where: str, node: str, at: str, ranks: int) -> PlanError:
        """Return the error for a node that needs all rows together, but is split over `ranks` data ranks."""
        what = f"{node} reads all rows together, so it cannot be split over data={ranks}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint="place its role with data=1")

    @classmethod
    def not_supported(cls, where: str, flow: str, names: Sequence[str]) -> PlanError:
        """Return the error for a plan with features that can be forecast and exported, but not run here.

        `names` has at least one feature, such as an engine.
        """
        first, *rest = names
        what = f"this plan of {flow} names {first}, which cannot be run here"
        notes = [f"nor {name}" for name in rest]
        options = {"weights": "--staleness", "steps": "--staleness"}
        option = options.get(first.partition(" ")[0], "--engine")
        return cls(what, where=where, notes=notes, hint=f"plan it without {option}, or `flowgraph export` it")

    @classmethod
    def lags_too_far(
        cls, where: str, role: str, lag: int, node: str, at_most: int, at: str, *, ahead: int = 0, updates: int = 1
    ) -> PlanError:
        """Return the error for a role whose lag, in updates, exceeds the `at_most` of one of its nodes.

        A role is one use of a model, such as `policy.sample`, with all nodes that use it so.
        If the role works `ahead` steps ahead, the hint has smaller depths and sync periods. A step makes `updates`.
        """
        hint = f"lag={at_most} at most" if at_most else "in the flow, stale(model, at_most=…) lets a generate node lag"
        every = max(1, lag // max(1, updates) - ahead + 1)
        overlap = f" ({pipeline_text(ahead, every)})" if ahead else ""
        if ahead:
            hint = smaller_pipeline(at_most // max(1, updates), ahead, every, lag)
        what = f"{role}: lag={lag}{overlap}, but {node} reads {allowed_weights(at_most)}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint=hint)

    @classmethod
    def ahead_of_lag(cls, where: str, role: str, ahead: int, lag: int, updates: int) -> PlanError:
        """Return the error for a role that works `ahead` steps ahead, so its weights are older than `lag` updates."""
        age = ahead * updates
        what = f"{role}: ahead={ahead} makes its weights at least {age} update{'s' if age > 1 else ''} old"
        return cls(f"{what}, but lag={lag}", where=where, hint=f"lag={age}, or ahead={lag // updates}")

    @classmethod
    def no_copy(cls, where: str, flow: str, ahead: int, every: int) -> PlanError:
        """Return the error for a plan whose steps cannot overlap, as it samples from the weights that it trains."""
        what = f"no role of {flow} samples from a copy of the weights, so there is no {pipeline_text(ahead, every)}"
        return cls(what, where=where, hint="--placement split, which gives sampling devices of its own")

    @classmethod
    def no_chunks(cls, where: str, role: str, chunks: int, why: str, hint: str = "") -> PlanError:
        """Return the error for a role whose groups cannot be handed out in `chunks` as they finish, with the reason."""
        return cls(f"{role}: chunks={chunks}, but {why}", where=where, hint=hint or "leave out chunks")

    @classmethod
    def not_in_flight(cls, where: str, role: str, why: str, hint: str = "", contract: str = "in_flight") -> PlanError:
        """Return the error for a role, or a flow, that cannot go on with new weights while it draws responses.

        `contract` is the one that the plan names for it, `in_flight` or `ready`.
        """
        return cls(f"{role}: contract={contract}, but {why}", where=where, hint=hint or "--contract scheduled")

    @classmethod
    def none_late(cls, where: str, role: str, lag: int, at_most: int, ahead: int, updates: int) -> PlanError:
        """Return the error for a role whose groups cannot be trained on later than in their own step.

        Its weights are `lag` updates old already, the flow allows `at_most`; it is `ahead` steps ahead, and a step
        makes `updates` updates.
        """
        why = f"its weights are up to {lag} updates old without a step to spare, and the flow allows {at_most}"
        hint = f"at_most={lag + updates} in the flow" + (f", or --depth {ahead - 1}" if ahead > 1 else "")
        return cls.not_in_flight(where, role, why, hint, "ready")

    @classmethod
    def lags_in_place(cls, where: str, role: str, lag: int, why: str) -> PlanError:
        """Return the error for a lag of a role that has no separate copy of the weights, with the reason."""
        hint = "leave lag out, or place it in another pool, engine or layout than training"
        return cls(f"{role}: lag={lag}, but {why}, so no copy could lag", where=where, hint=hint)


class ClusterError(FlowError, ValueError):
    """A cluster that cannot be read from its short form or its file."""

    @classmethod
    def unreadable(cls, where: str, place: str, why: str, hint: str = "") -> ClusterError:
        """Return the error for a text or file that describes no cluster; `place` is the faulty key, or ""."""
        return cls(f"{place}: {why}" if place else why, where=where, hint=hint)

    @classmethod
    def unknown_key(cls, where: str, place: str, key: str, names: Iterable[str]) -> ClusterError:
        """Return the error for an unknown key in a cluster's file; the hint is `nearest(key, names)`."""
        return cls(f"{place}: a cluster has no `{key}` here", where=where, hint=nearest(key, names))


class ResourceError(FlowError, MemoryError):
    """A run that does not fit on the devices it is given."""

    @classmethod
    def no_placement(cls, flow: str, on: str, overflow: str, notes: Sequence[str], hint: str) -> ResourceError:
        """Return the error for a flow that does not fit on a cluster, which `on` names.

        `overflow` says which role overflows its device in which phase, `notes` what the device holds, and `hint` names
        the smallest changes that fit.
        """
        return cls(f"no placement for {flow} on {on}: {overflow}", notes=notes, hint=hint)

    @classmethod
    def not_here(cls, what: str, needs: str, has: str, hint: str = "") -> ResourceError:
        """Return the error for a plan that needs more than the machines `what` have; `needs` and `has` are texts."""
        return cls(f"the plan needs {needs}; {has}", where=what, hint=hint)


_ENDED = "out of memory, a crash in native code, or killed; `flowgraph plan` forecasts memory"


class WorkerError(FlowError, RuntimeError):
    """A process of a run that ended, is stuck, or could not start."""

    @classmethod
    def died(cls, worker: str, doing: Sequence[str], how: Sequence[str]) -> WorkerError:
        """Return the error for a process that ended; the first of `doing` is its task, and `how` says how it ended."""
        notes = [*(f"its task was {task}" for task in doing[:1]), *how]
        return cls(f"{worker} ended during the run", notes=notes, hint=_ENDED)

    @classmethod
    def stuck(cls, worker: str, doing: Sequence[str], waited_s: float) -> WorkerError:
        """Return the error for a process without an answer for `waited_s` seconds; the first of `doing` is its task."""
        what = f"{worker} has not answered for {waited_s:.0f} s: it is stopped, or its machine cannot be reached"
        return cls(what, notes=[f"its task was {task}" for task in doing[:1]])

    @classmethod
    def overdue(
        cls, worker: str, doing: str, limit_s: float, waiting: Sequence[str], stacks: Sequence[str]
    ) -> WorkerError:
        """Return the error for a task that exceeds its limit of `limit_s` seconds.

        `waiting` are the tasks that wait for this task; three are named. `stacks` are lines of the processes' stacks.
        """
        behind = [f"waiting for it: {task}" for task in waiting[:3]]
        hint = f"its limit was {limit_s:.0f} s, set by the plan's forecast or by its earlier runs"
        return cls(f"{worker} did not finish {doing}", notes=[*behind, *stacks], hint=hint)

    @classmethod
    def stopped(cls, worker: str, doing: Sequence[str]) -> WorkerError:
        """Return the error for a process that a signal such as SIGSTOP stopped; the first of `doing` is its task."""
        return cls(f"{worker} is stopped, as by SIGSTOP", notes=[f"its task was {task}" for task in doing[:1]])

    @classmethod
    def failed(cls, doing: str, error: str) -> WorkerError:
        """Return the error for a failure outside user code, with the last six lines of `error`, its traceback."""
        lines = [line for line in error.strip().splitlines() if line.strip()]
        return cls(f"{doing} failed: {lines[-1].strip() if lines else 'no reason given'}", notes=lines[-6:-1])

    @classmethod
    def not_started(cls, what: str, why: str, hint: str = "") -> WorkerError:
        """Return the error for a process or service that could not be started, with the reason."""
        return cls(f"{what} could not be started: {why}", hint=hint)


class RunFolderError(FlowError, FileExistsError):
    """A run folder that exists already, or that cannot be used."""

    __str__ = FlowError.__str__

    @classmethod
    def exists(cls, path: str, free: str) -> RunFolderError:
        """Return the error for a run's folder that already exists; the hint names `free`, a folder that does not."""
        return cls("this run folder already exists; nothing in it was changed", where=path, hint=f"--out {free}")

    @classmethod
    def bad_name(cls, name: str) -> RunFolderError:
        """Return the error for an invalid name of a run."""
        hint = "use at most 64 letters, digits, dots, dashes and underscores"
        return cls(f"`{name}` is not a valid run name", hint=hint)

    @classmethod
    def cannot(cls, path: str, error: Exception) -> RunFolderError:
        """Return the error for a run's folder or file that cannot be used, with the message of the exception."""
        return cls(f"cannot be used: {error}", where=path)

    @classmethod
    def no_run(cls, path: str, runs: Iterable[str]) -> RunFolderError:
        """Return the error for a folder that is not a run folder; the hint names the nearest of `runs`."""
        return cls("is not a run folder", where=path, hint=nearest(path.rpartition("/")[2], runs))

    @classmethod
    def no_rollouts(cls, path: str, node: str) -> RunFolderError:
        """Return the error for a run that recorded no rollouts of the generate node `node`."""
        hint = "replay the run of a flow with the same generate nodes"
        return cls(f"recorded no rollouts of {node}", where=path, hint=hint)


class EnvironmentFailure(FlowError, RuntimeError):
    """An environment of conversations that cannot be used, or that failed in one."""

    @classmethod
    def not_loaded(cls, environment: str, why: str, *, at: str = "", hint: str = "") -> EnvironmentFailure:
        """Return the error for an environment that cannot be loaded, with the reason; `at` is the line at fault."""
        return cls(f"environment `{environment}` cannot be used: {why}", where=at, hint=hint)

    @classmethod
    def failed(cls, environment: str, method: str, row: str, why: str, *, at: str = "") -> EnvironmentFailure:
        """Return the error for a method, other than a tool, that raised, hung or returned what it cannot return.

        `row` says which conversation it was, and `why` has the exception.
        """
        what = f"environment `{environment}`: {method} failed for {row}: {why}"
        return cls(what, where=at, hint="errors of tools are told to the model; those of other methods end the run")
