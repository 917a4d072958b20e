"""The ways to run one role on so many devices: engine, layout, what it does to hold less; their seconds and bytes.

Not here: roles that share a pool (`blocks`), and the search over pools (`exact`, `greedy`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import ceil, inf

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Checkpointing, Layout, Logits, Offloaded, RoleSettings, Sharding
from flowgraph.engines.capabilities import Support
from flowgraph.engines.table import ENGINES, VERBS, is_server
from placements.activations import forward_numbers, row_numbers
from placements.cache_room import cache_tokens
from placements.footprint import Footprint, MemoryConstants, logits_bytes, total_bytes
from placements.generation import cache_wanted
from placements.loads import Load
from placements.role_costs import (
    Seat,
    footprint,
    offloaded_seconds,
    passing_seconds,
    sampling_seconds,
    streams,
    waking_bytes,
    woken_seconds,
)
from placements.seconds import Seconds
from placements.setting import Setting
from placements.training import WEIGHT_BYTES
from placements.transitions import WRITTEN, offload_seconds
from placements.ways import Choice, Way, slower_somewhere, unbeaten

# What goes through at once, and what is computed again: rows of the greatest length, or more if these have few tokens.
MICRO_BATCHES: tuple[tuple[int, int, Checkpointing], ...] = ((1, 4096, "none"), (1, 0, "full"), (4, 16384, "full"))
ALL_OFFLOADED: tuple[Offloaded, ...] = ("parameters", "gradients", "optimizer")
CACHE_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of a device's memory
TENSOR_AT_MOST = 8
POWERS = tuple(2**i for i in range(10))
MOST_STAGES = 16
ROOMY_SHARE = 0.3  # of a device: what takes less needs no more tensor ranks for its memory
TIGHT_SHARE = 0.6  # of a device: what takes more while it works may have to compute from host memory
NEGLIGIBLE = 0.0005  # of a role's seconds: what may be gained by being ready sooner that is not looked for
# Shares of a device: if the longest row takes more, it may be spread over more of them. Of a row that is kept whole; of
# one whose layers are computed again, in a domain; and over several domains.
KEPT_SHARE, AGAIN_SHARE, FAR_SHARE = 0.8, 0.15, 0.5
LARGE_LOGITS_SHARE = 0.1  # of a device: logits that take more of it come in chunks
UNEVEN_AT_MOST = 1.25  # times the layers that stages would have if all had as many as the fullest
SPREAD_AT_MOST = 32  # of what draws, over several domains, where its weights do not fit in one


@dataclass
class Ways:
    """The ways to run one role on one seat, each worked out as it is asked for.

    A way whose seconds are not known is left out: a search cannot weigh it. More tensor ranks are looked at only while
    they may help, unless all are wanted (`exhaustive`).
    """

    setting: Setting
    role: Role
    seat: Seat
    exhaustive: bool = False
    _footprints: dict[Way, Footprint] = field(default_factory=dict[Way, Footprint], repr=False)

    @cached_property
    def timed(self) -> tuple[Way, ...]:
        """Return the layouts, fastest first, in which nothing sleeps and no row waits that need not."""
        found = self._sampling() if self.role.use == "sample" else self._passing()
        return tuple(sorted(found, key=lambda way: (sum(way.stages_s), way.layout.tensor)))

    @cached_property
    def fastest(self) -> tuple[Choice, ...]:
        """Return the way that is the fastest in every stage, and those that are ready so much sooner that it may count.

        Nothing is returned where no way is the fastest in every stage.
        """
        if not self.timed or any(slower_somewhere(self.timed[0].stages_s, way.stages_s) for way in self.timed):
            return ()
        first, *others = self.timed
        kept = [self._choice(first)]
        for way in others if self.role.name in self.setting.synced else ():
            choice = self._choice(way)
            if all(choice.ready_s < other.ready_s - NEGLIGIBLE * sum(other.stages_s) for other in kept):
                kept.append(choice)
        return tuple(kept)

    @cached_property
    def unbeaten(self) -> tuple[Choice, ...]:
        """Return the ways that no other beats in seconds and in bytes."""
        return tuple(unbeaten(self.all))

    @property
    def all(self) -> list[Choice]:
        """Return every way: each of `timed`, with each place for what it holds."""
        return [each for way in self.timed for each in self._kept(way)]

    # ------------------------------------------------------------------------------------ layouts

    @cached_property
    def _own(self) -> list[Load]:
        return self.setting.loads_of(self.role)

    def _layouts(self, engine: str) -> Iterator[Layout]:
        """Return the layouts of an engine on all devices of the seat, out of those that a search may choose.

        Tensor groups lie in a domain and divide heads; where there are several domains they fill each of them. Engines
        that are asked for by name also cut layers into stages, and experts over ranks, as far as they offer it.
        """
        shape, of, devices = self.setting.shape(self.role), self.seat.of, self.seat.devices
        support = self.setting.support_of(engine)
        most = min(self._most_tensor(engine), devices, support.tensor) if of.kind in support.devices else 0
        for tensor in (degree for degree in POWERS if degree <= most):
            filled = devices <= of.reach or of.reach % tensor == 0 or tensor > of.reach
            if shape.heads % tensor == 0 and devices % tensor == 0 and filled:
                yield from self._spread(engine, devices // tensor, tensor)

    def _spread(self, engine: str, ranks: int, tensor: int) -> Iterator[Layout]:
        """Return the layouts of so many tensor groups: how many are stages, and how ranks share what they hold."""
        support = self.setting.support_of(engine)
        verbs = VERBS[self.role.use]
        if support.single_device.intersection(verbs) and ranks * tensor > 1:
            return
        if self.role.use == "sample":
            yield Layout(data=ranks, tensor=tensor)
            return
        for pipeline in self._stages(engine, ranks, tensor):
            for sequence in self._sequences(engine, ranks // pipeline, tensor):
                data = ranks // pipeline // sequence
                for sharding in _shardings(support, data * sequence, pipeline):
                    for expert in self._experts(data) if ENGINES[engine].supported is None else (1,):
                        yield Layout(
                            data=data,
                            tensor=tensor,
                            pipeline=pipeline,
                            expert=expert,
                            sequence=sequence,
                            sharding=sharding,
                        )

    def _stages(self, engine: str, ranks: int, tensor: int) -> Iterator[int]:
        """Return over how many stages layers are cut: as many in each; else as even as can be, where that holds less.

        Cuts that are not even are for tensor groups of whole machines, of models that do not fit otherwise. Source:
        Megatron Core, `num_layers_in_last_pipeline_stage`.
        """
        layers, most = self.setting.shape(self.role).layers, min(self.setting.support_of(engine).pipeline, MOST_STAGES)
        degrees = range(1, min(most, layers) + 1)
        yield from (each for each in degrees if each in POWERS and ranks % each == layers % each == 0)
        if most > 1 and tensor == min(TENSOR_AT_MOST, self.seat.of.reach, self.seat.devices):
            uneven = (each for each in degrees if ranks % each == 0 and (layers % each or each not in POWERS))
            yield from (each for each in uneven if ceil(layers / each) * each <= UNEVEN_AT_MOST * layers)

    def _sequences(self, engine: str, ranks: int, tensor: int) -> Iterator[int]:
        """Return over how many devices the tokens of a row may be spread, beside so many tensor ranks.

        First as few as leave each data rank a row. More of them are looked at while the longest row would fill much of
        a device: of one domain so that nothing is computed again, or beside tensor ranks, which may do for that, so
        that what is takes little; of several domains so that the row fits at all. Ranks that trade tokens for heads
        divide these.
        """
        if self.seat.of.kind != "gpu":
            yield 1
            return
        shape, support = self.setting.shape(self.role), self.setting.support_of(engine)
        heads = 0 if self.setting.training_of(engine).ring else shape.heads // tensor
        degrees = [s for s in POWERS if s <= min(ranks, support.sequence) and ranks % s == heads % s == 0]
        near = max(1, self.seat.of.reach // tensor)
        first = next((s for s in degrees if s <= near and ranks // s <= self.setting.most_ranks), 1)
        yield first
        for before, degree in pairwise(s for s in degrees if s >= first):
            again = degree > near or support.tensor > 1
            share = FAR_SHARE if degree > near else AGAIN_SHARE if again else KEPT_SHARE
            if self._row_bytes(tensor, before, again=again) <= share * self.seat.of.memory_bytes:
                return
            yield degree

    def _row_bytes(self, tensor: int, sequence: int, *, again: bool) -> float:
        """Return what a device holds of the longest row, spread over so many: all layers, or one that is made `again`.

        Without gradients it is one layer.
        """
        shape, longest = self.setting.shape(self.role), max(load.longest_tokens for load in self._own)
        layout = Layout(tensor=tensor, sequence=sequence)
        if self.role.use == "train":
            numbers = row_numbers(shape, layout, "full" if again else "none")
        else:
            numbers = forward_numbers(shape, layout)
        return WEIGHT_BYTES * numbers * longest / sequence

    def _experts(self, data: int) -> list[int]:
        """Return degrees over which experts are spread: none, those of a domain, and as many as there can be."""
        experts = self.setting.shape(self.role).experts
        known = [degree for degree in POWERS if experts and data % degree == experts % degree == 0]
        return sorted({1, *[degree for degree in known if degree <= self.seat.of.reach][-1:], *known[-1:]})

    def _most_tensor(self, engine: str) -> int:
        """Return the largest tensor-parallel degree: of one domain, or of several for what draws and fits in none."""
        reach = min(TENSOR_AT_MOST, self.seat.of.reach)
        if self.role.use != "sample" or any(self._room(engine, Layout(tensor=t), CACHE_SHARES[-1]) for t in (1, reach)):
            return reach
        return SPREAD_AT_MOST

    def _passing(self) -> Iterator[Way]:
        """Return the ways to train a model, or to read rows with it, from the fewest tensor ranks on.

        More of them are looked at as long as they are faster, or as memory may want them.
        """
        for engine in self.setting.engines_of(self.role.use):
            if found := list(self._passing_on(engine)):
                yield from found  # the next engine is for what this one cannot run
                return

    def _passing_on(self, engine: str) -> Iterator[Way]:
        before_s, roomy = inf, False
        for _, layouts in groupby(self._layouts(engine), lambda layout: layout.tensor):
            found = [way for layout in layouts for way in self._passing_in(engine, layout)]
            yield from found
            best_s = min((sum(way.stages_s) for way in found), default=inf)
            if roomy and best_s > before_s and not self.exhaustive:
                return
            leanest = min(
                found, key=lambda way: (way.running.micro_batch_tokens or 0, -sum(way.stages_s)), default=None
            )
            roomy = leanest is not None and self._held(leanest).peak_bytes <= ROOMY_SHARE * self.seat.of.memory_bytes
            before_s = best_s

    def _passing_in(self, engine: str, layout: Layout) -> Iterator[Way]:
        own = self.setting.loads_of(self.role, engine)
        total, trains = max(load.tokens.tokens for load in own), self.role.use == "train"
        if layout.data > (1 if self._whole_rows else self.setting.most_ranks):
            return
        read = dict[
            tuple[str, int | None], Seconds
        ]()  # a pass without gradients is the same whatever is computed again
        for running in self._runnings(engine, layout, total / layout.data, trains=trains):
            told = list[Seconds]()
            for load in own:
                key = load.node, running.micro_batch_tokens
                if key not in read or load.phase == "update":
                    read[key] = passing_seconds(self.setting, self.seat, engine, layout, running, load)
                told.append(read[key])
            yield from self._way(engine, layout, running, own, told)

    @cached_property
    def _whole_rows(self) -> bool:
        """Return whether a node of the role reads all rows together, so that ranks cannot share them."""
        return bool(self.setting.whole_rows.intersection(self.role.nodes))

    def _runnings(self, engine: str, layout: Layout, local: float, *, trains: bool) -> Iterator[RoleSettings]:
        """Return the ways to compute: on a CPU as executors do unasked, or less at once; else in mixed precision."""
        longest = max(load.longest_tokens for load in self._own)
        settings = self.setting.support_of(engine).settings
        if self.seat.of.kind == "cpu":
            yield RoleSettings()
            if trains and settings is not None and "micro_batch_tokens" in settings:
                yield RoleSettings(micro_batch_tokens=longest)
            return
        if settings is not None and "precision" not in settings:
            yield RoleSettings()
            return
        for micro, checkpointing in self._micro_batches(local, longest, trains=trains):
            if self._is_beside_the_point(layout, longest, micro, checkpointing):
                continue
            plain = RoleSettings(precision="bfloat16", checkpointing=checkpointing, micro_batch_tokens=micro)
            for logits in self._logits(engine, layout, micro, trains=trains):
                yield plain if logits == plain.logits else plain.model_copy(update={"logits": logits})

    def _is_beside_the_point(self, layout: Layout, longest: int, micro: int, checkpointing: Checkpointing) -> bool:
        """Return whether a way to compute needs no row spread so far: several rows at once, or all of a row again.

        Rows are spread for their length so that one of them fits, or so that nothing of it is computed again.
        """
        before, memory = layout.sequence // 2, self.seat.of.memory_bytes
        if not before or self._row_bytes(layout.tensor, before, again=False) <= KEPT_SHARE * memory:
            return False
        large = self._row_bytes(layout.tensor, before, again=True) > AGAIN_SHARE * memory
        return micro > longest or (checkpointing == "full" and not large)

    def _logits(self, engine: str, layout: Layout, micro: int, *, trains: bool) -> tuple[Logits, ...]:
        """Return how the logits of a micro-batch may come: in chunks as our engines make them; else whole while small.

        Chunks are made twice in an update, so where whole ones take much of a device both are looked at.
        """
        if ENGINES[engine].supported is not None:
            return ("chunked",)
        known = MemoryConstants()
        each = known.whole_logit_bytes if trains else known.read_logit_bytes
        shape, tokens = self.setting.shape(self.role), micro / layout.sequence
        whole_bytes = logits_bytes(shape, layout, tokens, "whole", each, known)
        if whole_bytes <= LARGE_LOGITS_SHARE * self.seat.of.memory_bytes:
            return ("whole",)
        return ("whole", "chunked") if trains else ("chunked",)

    def _micro_batches(self, local: float, longest: int, *, trains: bool) -> Iterator[tuple[int, Checkpointing]]:
        """Return the tokens that go through at once, of so many that a rank has, and what is computed again."""
        seen = set[tuple[int, Checkpointing]]()
        for rows, least, checkpointing in MICRO_BATCHES:
            if not trains and checkpointing == "none":
                continue
            micro = max(longest, min(max(rows * longest, least), ceil(local)))
            told = micro, checkpointing if trains else "none"
            if told not in seen:
                seen.add(told)
                yield told

    def _sampling(self) -> Iterator[Way]:
        """Return the ways to draw, each with the least share of memory with which no row waits, else the most."""
        for engine in self.setting.engines_of("sample"):
            for layout in self._layouts(engine):
                if layout.data > 1 and self._whole_rows and not is_server(engine):
                    continue
                if layout.data > self.setting.most_ranks and not is_server(engine):
                    continue
                if not self._has_share(engine):
                    yield from self._drawing(engine, layout, None)
                    continue
                shares = [s for s in CACHE_SHARES if self._room(engine, layout, s) >= self._wanted(engine, layout)]
                yield from self._drawing(engine, layout, shares[0] if shares else CACHE_SHARES[-1])

    def _has_share(self, engine: str) -> bool:
        """Return whether an engine is given a share of its device's memory; what is on a CPU takes what it needs."""
        return (self.seat.of.kind == "gpu" and is_server(engine)) or ENGINES[engine].supported is None

    def _drawing(self, engine: str, layout: Layout, share: float | None) -> Iterator[Way]:
        precision = self.setting.sampling_precision
        running = RoleSettings(precision=precision, cache_share=share, sleeps=share is not None)
        if not is_server(engine) and ENGINES[engine].supported is not None:
            running = RoleSettings()
        awake = running.model_copy(update={"sleeps": False})  # as it is where it has a pool of its own
        told = [sampling_seconds(self.setting, self.seat, engine, layout, awake, load) for load in self._own]
        yield from self._way(engine, layout, running, self._own, [each for each in told if each is not None])

    def _room(self, engine: str, layout: Layout, share: float) -> int:
        shape, serving = self.setting.shape(self.role), self.setting.serving_of(engine)
        precision = self.setting.sampling_precision
        return cache_tokens(shape, self.seat.links.device, layout.tensor, share, serving, precision)

    def _wanted(self, engine: str, layout: Layout) -> float:
        def wanted(load: Load) -> float:
            lengths = load.prompt, load.response
            most = load.round_rows * (self.setting.lag + 1 if streams(self.setting, self.role) else 1)
            rows = cache_wanted(most, *lengths, layout, self.setting.serving_of(engine), load.samples)
            return max(load.longest_tokens, rows)

        return max(map(wanted, self._own))

    def _way(
        self, engine: str, layout: Layout, running: RoleSettings, own: Sequence[Load], told: Sequence[Seconds]
    ) -> Iterator[Way]:
        stages = [0.0] * (self.setting.stages + 1)
        totals = [each.total_s for each in told]
        for load, total in zip(own, totals, strict=False):
            stages[load.stage] += total or 0.0
        if len(told) == len(own) and None not in totals:
            yield Way(engine, layout, running, tuple(told), tuple(stages))

    # ------------------------------------------------------------------------------------ what is kept where

    def _kept(self, way: Way) -> Iterator[Choice]:
        """Return the places for what a way holds: its devices, these only while it works, or if tight the host.

        What draws always sleeps while others work; it may have less cache, so that rows wait.
        """
        if self.role.use == "sample":
            yield self._choice(way)
            for share in CACHE_SHARES:
                if share < (way.running.cache_share or 0.0):
                    yield from (self._choice(less) for less in self._drawing(way.engine, way.layout, share))
            return
        held = self._held(way)
        yield self._choice(way, held)
        if self.seat.of.kind == "cpu":
            return  # host memory is the device's own
        yield self._choice(replace(way, running=way.running.model_copy(update={"sleeps": True})), held)
        if held.peak_bytes > TIGHT_SHARE * self.seat.of.memory_bytes:
            for change in self._offloads(way.engine, way.layout):
                yield self._choice(replace(way, running=way.running.model_copy(update=change)))

    def _offloads(self, engine: str, layout: Layout) -> Iterator[dict[str, object]]:
        """Return what an engine offers to hold less while it works: all on the host, or an optimizer that steps there.

        With the latter, the rest may still sleep while others work; it is not offered with weights that are sharded.
        """
        settings = self.setting.support_of(engine).settings
        if settings is None or not settings.get("offload") or ALL_OFFLOADED in settings["offload"]:
            yield {"offload": ALL_OFFLOADED}
        if ENGINES[engine].cpu_optimizer and self.role.use == "train" and layout.sharding != "full":
            yield {"offload": ("optimizer",)}
            yield {"offload": ("optimizer",), "sleeps": True}

    def _held(self, way: Way) -> Footprint:
        if way not in self._footprints:
            self._footprints[way] = footprint(self.setting, self.role, self.seat, way.engine, way.layout, way.running)
        return self._footprints[way]

    def _choice(self, way: Way, held: Footprint | None = None) -> Choice:
        """Return a way with its bytes: those `held`, which sleeping does not change, or as they are found."""
        found = held or self._held(way)
        moved, woken, stages, running = 0.0, 0.0, list(way.stages_s), way.running
        if self.role.use != "sample":
            woken = woken_seconds(found, self.seat, running).total_s or 0.0
            offloaded = offloaded_seconds(found, self.seat, way.layout, running, self._own)
            moved = woken + (offloaded.total_s or 0.0)
        stages[self._own[-1].stage] += moved
        return Choice(
            engine=way.engine,
            layout=way.layout,
            running=running,
            stages_s=tuple(stages),
            rest_bytes=total_bytes(found.asleep if running.sleeps else found.resident),
            peak_bytes=found.peak_bytes,
            host_bytes=total_bytes(found.host) + (total_bytes(found.asleep_host) if running.sleeps else 0),
            wakes_bytes=waking_bytes(found) if running.sleeps else 0,
            context_bytes=found.asleep.get("context", 0),
            moved_s=moved,
            woken_s=woken,
            ready_s=self._ready_s(way, waking_bytes(found) if running.sleeps else 0),
        )

    def _ready_s(self, way: Way, wakes_bytes: int) -> float:
        """Return the seconds in which a rollout engine wakes, and in which it installs weights that were trained."""
        if self.role.name not in self.setting.synced:
            return 0.0
        device, held_bytes = self.seat.links.device, WEIGHT_BYTES * self.setting.shape(self.role).trained
        installed_bytes = WRITTEN * held_bytes / (way.layout.tensor * way.layout.pipeline)
        return offload_seconds(wakes_bytes, device) + installed_bytes / device.memory_bytes_per_s


def choices(setting: Setting, role: Role, seat: Seat) -> tuple[Choice, ...]:
    """Return the ways to run a role there that no other beats in seconds and in bytes; none where it cannot run."""
    return Ways(setting, role, seat).unbeaten


def all_choices(setting: Setting, role: Role, seat: Seat) -> tuple[Choice, ...]:
    """Return every way to run a role there in every layout, fastest first, also those that others beat."""
    return tuple(sorted(Ways(setting, role, seat, exhaustive=True).all, key=lambda each: sum(each.stages_s)))


def _shardings(support: Support, data: int, pipeline: int) -> tuple[Sharding, ...]:
    """Return how ranks may share what they hold: one rank as an engine calls that, stages never by full sharding."""
    if data == 1 and "none" in support.sharding:
        return ("none",)
    wanted: tuple[Sharding, ...] = ("optimizer",) if pipeline > 1 else ("optimizer", "full")
    offered: tuple[Sharding, ...] = tuple(each for each in wanted if each in support.sharding)
    alone: tuple[Sharding, ...] = ("none",) if "none" in support.sharding else ()
    return offered or alone
