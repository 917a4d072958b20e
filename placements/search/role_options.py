"""The options to run one role on a group of devices: engine, layout and settings, with their seconds and bytes.

Not here: roles that share a pool (`pool_options`), and the search over pools (`solver.exact`, `solver.greedy`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import ceil, inf

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Checkpointing, Layout, Logits, Offloaded, RoleSettings, Sharding
from flowgraph.engines.capabilities import Support
from flowgraph.engines.table import ENGINES, VERBS, is_server
from flowgraph.models import ModelShape
from placements.memory.activations import forward_numbers, row_numbers
from placements.memory.footprint import MemoryConstants, logits_bytes, total_bytes
from placements.search.dominance import RoleOption, slower_somewhere, undominated
from placements.step.role_costs import (
    DeviceGroup,
    footprint,
    least_sampling_seconds,
    offloaded_seconds,
    passing_seconds,
    streams,
    stretch_of,
    waking_bytes,
    woken_seconds,
)
from placements.time.decode import cache_tokens
from placements.time.generation import cache_wanted
from placements.time.seconds import Seconds
from placements.time.training import WEIGHT_BYTES
from placements.time.transitions import WRITTEN, offload_seconds
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem

LoadSeconds = Mapping[NodeWorkload, Seconds | None]

# Rows of the greatest length that go through at once, or more if these have few tokens; and what is computed again.
MICRO_BATCHES: tuple[tuple[int, int, Checkpointing], ...] = ((1, 4096, "none"), (1, 0, "full"), (4, 16384, "full"))
ALL_OFFLOADED: tuple[Offloaded, ...] = ("parameters", "gradients", "optimizer")
CACHE_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of a device's memory
MAX_TENSOR = 8
MAX_SPREAD_TENSOR = 32  # of a rollout engine over several domains, where its weights do not fit in one
MAX_STAGES = 16
POWERS = tuple(2**i for i in range(10))
ROOMY_SHARE = 0.3  # of a device: a role that takes less needs no more tensor ranks for its memory
TIGHT_SHARE = 0.6  # of a device: a role that takes more while it works may have to offload
NEGLIGIBLE = 0.0005  # of a role's seconds: being ready sooner by less is not considered
# Shares of a device: a longest row that takes more may be spread over more devices. Of a row without checkpointing; of
# one whose layers are computed again, in a domain; and over several domains.
UNCHECKPOINTED_SHARE, CHECKPOINTED_SHARE, SEVERAL_DOMAINS_SHARE = 0.8, 0.15, 0.5
LARGE_LOGITS_SHARE = 0.1  # of a device: logits that take more of it come in chunks
MAX_UNEVEN = 1.25  # times the layers that stages would have if all had as many as the fullest


@dataclass
class RoleOptions:
    """The options to run one role on one group of devices, each computed on demand.

    Options with unknown seconds are left out. More tensor ranks are considered only while they may help, unless
    `exhaustive`.
    """

    problem: PlanningProblem
    role: Role
    group: DeviceGroup
    exhaustive: bool = False

    @cached_property
    def on_devices(self) -> tuple[RoleOption, ...]:
        """Return the options with all state on the devices, fastest first; a rollout engine's cache holds all rows.

        If no cache size is large enough for all rows, the rollout engine has the largest cache. A role that trains or
        reads rows uses the first engine that has any option. Returns () if no engine can run the role there in known
        seconds.
        """
        if self.role.use == "sample":
            options = list(self._rollout_options())
        else:  # of the first engine that runs any
            engines = self.problem.engines_of(self.role.use)
            options = next(filter(None, (list(self._pass_options(engine)) for engine in engines)), [])
        return tuple(sorted(options, key=lambda option: (sum(option.stages_s), option.layout.tensor)))

    @cached_property
    def fastest(self) -> tuple[RoleOption, ...]:
        """Return the option that is fastest in every stage, then slower ones that are ready sooner after a weight sync.

        Sooner means by more than 0.05% of the seconds of each faster option; only a role that receives weight syncs has
        such slower options. Returns () if no option is the fastest in every stage.
        """
        first, *rest = self.on_devices or (None,)
        if first is None or any(slower_somewhere(first.stages_s, option.stages_s) for option in rest):
            return ()
        options = [first]
        for option in rest if self.role.name in self.problem.synced else ():
            if all(option.ready_s < faster.ready_s - NEGLIGIBLE * sum(faster.stages_s) for faster in options):
                options.append(option)
        return tuple(options)

    @cached_property
    def undominated(self) -> tuple[RoleOption, ...]:
        """Return all options by ascending seconds, without those that an option before them dominates."""
        return tuple(undominated(self.all))

    @property
    def all(self) -> list[RoleOption]:
        """Return every option: each one of `on_devices`, followed by its variants that save memory."""
        return [variant for option in self.on_devices for variant in self._memory_variants(option)]

    # ------------------------------------------------------------------------------------ layouts

    @cached_property
    def _loads(self) -> list[NodeWorkload]:
        return self.problem.loads_of(self.role)

    @property
    def _shape(self) -> ModelShape:
        return self.problem.shape(self.role)

    @cached_property
    def _max_ranks(self) -> int:
        """Return over how many ranks rows can be shared: not at all where a node reads all of them together."""
        return 1 if self.problem.whole_rows.intersection(self.role.nodes) else self.problem.most_ranks

    @cached_property
    def _longest_tokens(self) -> int:
        return max(load.longest_tokens for load in self._loads)

    def _layouts(self, engine: str) -> Iterator[Layout]:
        """Yield layouts over all devices; tensor groups span domains only if a rollout engine's weights fit in none."""
        of, devices, support = self.group.of, self.group.devices, self.problem.support_of(engine)
        if of.kind not in support.devices:
            return
        maximum = min(MAX_TENSOR, of.reach)
        if self.role.use == "sample" and not any(
            self._cache_room(engine, Layout(tensor=tensor), CACHE_SHARES[-1]) for tensor in (1, maximum)
        ):
            maximum = MAX_SPREAD_TENSOR
        maximum = min(maximum, devices, support.tensor)
        single = support.single_device.intersection(VERBS[self.role.use])
        for tensor in (degree for degree in POWERS if degree <= maximum):
            fills_domains = devices <= of.reach or of.reach % tensor == 0 or tensor > of.reach
            if self._shape.heads % tensor or devices % tensor or not fills_domains or (single and devices > 1):
                continue
            if self.role.use == "sample":
                yield Layout(data=devices // tensor, tensor=tensor)
            else:
                yield from self._pass_layouts_of(engine, support, devices // tensor, tensor)

    def _pass_layouts_of(self, engine: str, support: Support, ranks: int, tensor: int) -> Iterator[Layout]:
        """Yield the layouts of `ranks` tensor groups; only engines requested by name have stages and expert ranks."""
        experts = self._shape.experts
        for pipeline in self._pipelines(support, ranks, tensor):
            for sequence in self._sequences(engine, support, ranks // pipeline, tensor):
                data = ranks // pipeline // sequence
                degrees = [1]
                if ENGINES[engine].supported is None:
                    degrees = [degree for degree in POWERS if experts and data % degree == experts % degree == 0]
                    in_domain = [degree for degree in degrees if degree <= self.group.of.reach]
                    degrees = sorted({1, *in_domain[-1:], *degrees[-1:]})
                # One rank shares its state as an engine calls that; stages never do by full sharding.
                considered: tuple[Sharding, ...] = ("optimizer",) if pipeline > 1 else ("optimizer", "full")
                none: tuple[Sharding, ...] = ("none",) if "none" in support.sharding else ()
                offered: tuple[Sharding, ...] = tuple(kind for kind in considered if kind in support.sharding)
                for sharding in none if data * sequence == 1 and none else offered or none:
                    for expert in degrees:
                        yield Layout(
                            data=data,
                            tensor=tensor,
                            pipeline=pipeline,
                            expert=expert,
                            sequence=sequence,
                            sharding=sharding,
                        )

    def _pipelines(self, support: Support, ranks: int, tensor: int) -> Iterator[int]:
        """Yield numbers of stages: first those with equal numbers of layers, then uneven ones that may hold less.

        Source: Megatron Core, `num_layers_in_last_pipeline_stage`.
        """
        layers, maximum = self._shape.layers, min(support.pipeline, MAX_STAGES)
        degrees = [degree for degree in range(1, min(maximum, layers) + 1) if ranks % degree == 0]
        yield from (degree for degree in degrees if degree in POWERS and layers % degree == 0)
        if maximum > 1 and tensor == min(MAX_TENSOR, self.group.of.reach, self.group.devices):
            uneven = (degree for degree in degrees if layers % degree or degree not in POWERS)
            yield from (degree for degree in uneven if ceil(layers / degree) * degree <= MAX_UNEVEN * layers)

    def _sequences(self, engine: str, support: Support, ranks: int, tensor: int) -> Iterator[int]:
        """Yield over how many devices the tokens of a row may be spread, besides the tensor ranks.

        The first is the least that leaves each data rank a row. More follow while the longest row would fill much of a
        device: inside one domain to avoid computing anything again, over several domains only if the row does not fit
        otherwise.
        """
        if self.group.of.kind != "gpu":
            yield 1
            return
        heads = 0 if self.problem.training_of(engine).ring else self._shape.heads // tensor
        degrees = [s for s in POWERS if s <= min(ranks, support.sequence) and ranks % s == heads % s == 0]
        in_domain = max(1, self.group.of.reach // tensor)
        first = next((s for s in degrees if s <= in_domain and ranks // s <= self.problem.most_ranks), 1)
        yield first
        for fewer, degree in pairwise(s for s in degrees if s >= first):
            checkpointed = degree > in_domain or support.tensor > 1
            share = CHECKPOINTED_SHARE if checkpointed else UNCHECKPOINTED_SHARE
            share = SEVERAL_DOMAINS_SHARE if degree > in_domain else share
            if self._row_bytes(tensor, fewer, checkpointed=checkpointed) <= share * self.group.of.memory_bytes:
                return
            yield degree

    def _row_bytes(self, tensor: int, sequence: int, *, checkpointed: bool) -> float:
        layout = Layout(tensor=tensor, sequence=sequence)
        if self.role.use == "train":
            numbers = row_numbers(self._shape, layout, "full" if checkpointed else "none")
        else:
            numbers = forward_numbers(self._shape, layout)
        return WEIGHT_BYTES * numbers * self._longest_tokens / sequence

    # ------------------------------------------------------------------------------------ training and reading

    def _pass_options(self, engine: str) -> Iterator[RoleOption]:
        previous_s, roomy = inf, False
        for _, layouts in groupby(self._layouts(engine), lambda layout: layout.tensor):
            of_degree = [option for layout in layouts for option in self._passes_in(engine, layout)]
            yield from of_degree
            best_s = min((sum(option.stages_s) for option in of_degree), default=inf)
            if roomy and best_s > previous_s and not self.exhaustive:
                return
            leanest = min(
                of_degree,
                key=lambda option: (option.running.micro_batch_tokens or 0, -sum(option.stages_s)),
                default=None,
            )
            small_bytes = ROOMY_SHARE * self.group.of.memory_bytes
            roomy = leanest is not None and leanest.peak_bytes <= small_bytes
            previous_s = best_s

    def _passes_in(self, engine: str, layout: Layout) -> Iterator[RoleOption]:
        loads = self.problem.loads_of(self.role, engine)
        if layout.data > self._max_ranks:
            return
        local_tokens = max(load.tokens.tokens for load in loads) / layout.data
        forward = dict[tuple[str, int | None], Seconds]()  # the same whatever an update computes again
        for running in self._runnings(engine, layout, local_tokens):
            seconds = dict[NodeWorkload, Seconds | None]()
            for load in loads:
                key = load.node, running.micro_batch_tokens
                if key not in forward or load.phase == "update":
                    forward[key] = passing_seconds(self.problem, self.group, engine, layout, running, load)
                seconds[load] = forward[key]
            yield from self._option_of(engine, layout, running, seconds)

    def _runnings(self, engine: str, layout: Layout, local_tokens: float) -> Iterator[RoleSettings]:
        trains, longest = self.role.use == "train", self._longest_tokens
        settings = self.problem.support_of(engine).settings
        if self.group.of.kind == "cpu":
            yield RoleSettings()
            if trains and settings is not None and "micro_batch_tokens" in settings:
                yield RoleSettings(micro_batch_tokens=longest)
            return
        if settings is not None and "precision" not in settings:
            yield RoleSettings()
            return
        micro_batches: list[tuple[int, Checkpointing]] = [
            (max(longest, min(max(rows * longest, minimum), ceil(local_tokens))), checkpointing if trains else "none")
            for rows, minimum, checkpointing in MICRO_BATCHES
            if trains or checkpointing != "none"
        ]
        # Rows are spread so that one of them fits, or so that nothing of it is computed again: not for several at once.
        fewer, memory = layout.sequence // 2, self.group.of.memory_bytes
        spread = fewer and self._row_bytes(layout.tensor, fewer, checkpointed=False) > UNCHECKPOINTED_SHARE * memory
        large = spread and self._row_bytes(layout.tensor, fewer, checkpointed=True) > CHECKPOINTED_SHARE * memory
        for micro, checkpointing in dict.fromkeys(micro_batches):
            if spread and (micro > longest or (checkpointing == "full" and not large)):
                continue
            for logits in self._logits(engine, layout, micro):
                plain = RoleSettings(precision="bfloat16", checkpointing=checkpointing, micro_batch_tokens=micro)
                yield plain if logits == plain.logits else plain.model_copy(update={"logits": logits})

    def _logits(self, engine: str, layout: Layout, micro: int) -> tuple[Logits, ...]:
        """Return how logits may be computed; an update computes chunked logits twice, so both ways may be offered."""
        if ENGINES[engine].supported is not None:
            return ("chunked",)
        trains, constants = self.role.use == "train", MemoryConstants()
        logit_bytes = constants.whole_logit_bytes if trains else constants.read_logit_bytes
        whole_bytes = logits_bytes(self._shape, layout, micro / layout.sequence, "whole", logit_bytes, constants)
        if whole_bytes <= LARGE_LOGITS_SHARE * self.group.of.memory_bytes:
            return ("whole",)
        return ("whole", "chunked") if trains else ("chunked",)

    # ------------------------------------------------------------------------------------ rollouts

    def _rollout_options(self) -> Iterator[RoleOption]:
        """Yield the options to generate, each with the least cache in which no row waits, else the largest."""
        batches = float(self.problem.lag + 1) if streams(self.problem, self.role) else 1.0
        if self.problem.contract == "in_flight":
            batches = max(1.0, (self.problem.lag_of(self.role) + 1) / min(map(stretch_of, self._loads)))
        for engine in self.problem.engines_of("sample"):
            serving, max_replicas = self.problem.serving_of(engine), inf if is_server(engine) else self._max_ranks
            for layout in self._layouts(engine):
                if layout.data > max_replicas:
                    continue
                share = None
                if ENGINES[engine].supported is None or (is_server(engine) and self.group.of.kind == "gpu"):
                    wanted_tokens = max(
                        max(
                            load.longest_tokens,
                            cache_wanted(
                                ceil(load.round_rows * batches),
                                load.prompt,
                                load.response,
                                layout,
                                serving,
                                load.samples,
                            ),
                        )
                        for load in self._loads
                    )
                    enough = (s for s in CACHE_SHARES if self._cache_room(engine, layout, s) >= wanted_tokens)
                    share = next(enough, CACHE_SHARES[-1])
                yield from self._rollouts(engine, layout, share)

    def _rollouts(self, engine: str, layout: Layout, share: float | None) -> Iterator[RoleOption]:
        running = RoleSettings()
        if is_server(engine) or ENGINES[engine].supported is None:
            precision = self.problem.sampling_precision
            running = RoleSettings(precision=precision, cache_share=share, sleeps=share is not None)
        awake = running.model_copy(update={"sleeps": False})  # as in a pool of its own
        place = self.problem, self.group, engine, layout, awake
        seconds = {load: least_sampling_seconds(*place, load) for load in self._loads}
        yield from self._option_of(engine, layout, running, seconds)

    def _cache_room(self, engine: str, layout: Layout, share: float) -> int:
        serving, precision = self.problem.serving_of(engine), self.problem.sampling_precision
        return cache_tokens(self._shape, self.group.links.device, layout.tensor, share, serving, precision)

    def _option_of(
        self, engine: str, layout: Layout, running: RoleSettings, seconds: LoadSeconds
    ) -> Iterator[RoleOption]:
        stages = [0.0] * (self.problem.stages + 1)
        for load, load_s in seconds.items():
            if load_s is None or load_s.total_s is None:
                return
            stages[load.stage] += load_s.total_s
        yield self._option(engine, layout, running, stages)

    # ------------------------------------------------------------------------------------ memory

    def _memory_variants(self, option: RoleOption) -> Iterator[RoleOption]:
        """Yield an option and its variants: asleep while others work, offloaded if tight, or with less cache."""
        yield option
        if self.role.use == "sample":
            for share in CACHE_SHARES:
                if share < (option.running.cache_share or 0.0):
                    yield from self._rollouts(option.engine, option.layout, share)
            return
        if self.group.of.kind == "cpu":
            return  # host memory is the device's own
        changes = list[dict[str, object]]([{"sleeps": True}])
        if option.peak_bytes > TIGHT_SHARE * self.group.of.memory_bytes:
            settings = self.problem.support_of(option.engine).settings
            if settings is None or not settings.get("offload") or ALL_OFFLOADED in settings["offload"]:
                changes.append({"offload": ALL_OFFLOADED})
            # An optimizer that steps on the host is not offered with weights that are sharded.
            if ENGINES[option.engine].cpu_optimizer and self.role.use == "train" and option.layout.sharding != "full":
                changes += [{"offload": ("optimizer",)}, {"offload": ("optimizer",), "sleeps": True}]
        for change in changes:
            running = option.running.model_copy(update=change)
            yield self._option(option.engine, option.layout, running, option.stages_s)

    def _option(self, engine: str, layout: Layout, running: RoleSettings, stages_s: Sequence[float]) -> RoleOption:
        taken = footprint(self.problem, self.role, self.group, engine, layout, running)
        moved, woken, stages = 0.0, 0.0, list(stages_s)
        if self.role.use != "sample":
            woken = woken_seconds(taken, self.group, running).total_s or 0.0
            offloaded = offloaded_seconds(taken, self.group, layout, running, self._loads)
            moved = woken + (offloaded.total_s or 0.0)
        stages[self._loads[-1].stage] += moved
        wakes_bytes, ready_s = waking_bytes(taken) if running.sleeps else 0, 0.0
        if self.role.name in self.problem.synced:
            device, ranks = self.group.links.device, layout.tensor * layout.pipeline
            installed_bytes = WRITTEN * (WEIGHT_BYTES * self._shape.trained) / ranks
            ready_s = offload_seconds(wakes_bytes, device) + installed_bytes / device.memory_bytes_per_s
        return RoleOption(
            engine=engine,
            layout=layout,
            running=running,
            stages_s=tuple(stages),
            rest_bytes=total_bytes(taken.asleep if running.sleeps else taken.resident),
            peak_bytes=taken.peak_bytes,
            host_bytes=total_bytes(taken.host) + (total_bytes(taken.asleep_host) if running.sleeps else 0),
            wakes_bytes=wakes_bytes,
            context_bytes=taken.asleep.get("context", 0),
            moved_s=moved,
            woken_s=woken,
            ready_s=ready_s,
        )
