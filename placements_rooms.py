"""The mapping table of move_placements.py: rooms, modules, tests, classes and public functions of `placements`."""

# A module that no table below names goes to this room, with a warning.
DEFAULT_ROOM = "search"

# Each room with the docstring of its `__init__.py`, in the order of the rooms: a room imports those before it only.
ROOMS = {
    "solver": "Choose options for blocks of roles: numbers alone, without graphs, devices or engines.",
    "hardware": "Devices, what connects them, and the constants of engines, with their sources.",
    "workload": "What a step asks of its models: lengths, batches, rows, tokens and bytes, on no device yet.",
    "memory": "Bytes that roles hold on devices, while they wait, work and sleep.",
    "time": "Seconds of kernels, collectives, passes, generation and what lies between phases.",
    "step": "The forecast of a step of placed roles: its tasks, its period and the bytes of its pools.",
    "search": "The search for a plan, and what changes with it: alternatives, staleness, sensitivity.",
    "calibration": "Fit constants and scales of forecasts to measured seconds.",
    "report": "Search results, plans and timelines as text and as data of charts.",
}

# old module -> its place below `placements/`.
MODULES = {
    "text": "format",
    # solver
    "problem": "solver/problem",
    "tables": "solver/option_table",
    "boxes": "solver/branch_and_bound",
    "bounds": "solver/partition_bounds",
    "exact": "solver/exact",
    "greedy": "solver/greedy",
    "solve": "solver/solve",
    # hardware
    "profiles": "hardware/device_profiles",
    "constants": "hardware/engine_constants",
    "topology": "hardware/topology",
    "architectures": "hardware/architectures",
    # workload
    "lengths": "workload/lengths",
    "length_fits": "workload/length_fits",
    "loads": "workload/node_workload",
    "work": "workload/graph_workload",
    "cuts": "workload/batch_partition",
    "batch_sizes": "workload/batch_sizes",
    "size_rules": "workload/size_rules",
    "packing": "workload/packing",
    "step_facts": "workload/step_facts",
    "flops": "workload/flops",
    "wire": "workload/value_bytes",
    "setting": "workload/planning_problem",
    # memory
    "footprint": "memory/footprint",
    "footprint_process": "memory/process",
    "footprint_serving": "memory/serving",
    "footprint_training": "memory/training",
    "activations": "memory/activations",
    "holding": "memory/model_shards",
    "kv_cache": "memory/kv_cache",
    "largest_pass": "memory/largest_pass",
    "pool_peaks": "memory/pool_peaks",
    # time
    "seconds": "time/seconds",
    "kernels": "time/kernels",
    "collectives": "time/collectives",
    "training": "time/training",
    "training_layers": "time/training_layers",
    "training_parallel": "time/training_collectives",
    "training_passes": "time/training_passes",
    "decode": "time/decode",
    "generation": "time/generation",
    "in_flight": "time/in_flight",
    "long_tail": "time/long_tail",
    "cache_room": "time/cache_capacity",
    "transitions": "time/transitions",
    "host_work": "time/host_work",
    # step
    "steps": "step/tasks",
    "schedule": "step/schedule",
    "cycles": "step/period",
    "timeline": "step/timeline",
    "bubbles": "step/idle_time",
    "step_rows": "step/task_rows",
    "barriers": "step/barriers",
    "homes": "step/role_placements",
    "role_costs": "step/role_costs",
    "memory_forecast": "step/memory_forecast",
    "step_forecast": "step/step_forecast",
    # search
    "finding": "search/search",
    "ranked": "search/ranked_plan",
    "ways": "search/dominance",
    "choices": "search/role_options",
    "blocks": "search/pool_options",
    "folding": "search/combined_options",
    "named": "search/named_placements",
    "placing": "search/plan_builder",
    "short": "search/infeasibility",
    "memory_knobs": "search/memory_reductions",
    "moves": "search/alternatives",
    "robust": "search/sensitivity",
    "late": "search/staleness",
    "what_if": "search/what_if",
    # calibration
    "calibrate": "calibration/fit_constants",
    "scale_fit": "calibration/fit_scales",
    "measured_runs": "calibration/measured_runs",
    "timing_logs": "calibration/timing_logs",
    "timing_names": "calibration/timing_names",
    # report
    "found_text": "report/search_report",
    "moves_text": "report/explain_report",
    "timeline_text": "report/timeline",
    "timeline_picture": "report/timeline_chart",
    "comparison_picture": "report/comparison",
    "search_picture": "report/search_chart",
    "chrome_trace": "report/chrome_trace",
    "arrow_sizes": "report/arrow_sizes",
    "chunked_logits": "report/chunked_logits",
    "cautions": "report/cautions",
    "published_errors": "report/published_errors",
}

# Folders and files that are no modules, below `placements/`.
DATA = {
    "devices": "hardware/devices",
    "engines": "hardware/engines",
    "published_errors.toml": "report/published_errors.toml",
}

# Tests without a module of their own name, below `tests/unit/placements/`; the rest follow their module.
TESTS = {
    "test_gathered": "memory/test_gathered_weights",
    "test_long_rows": "step/test_long_rows",
    "test_recipes": "search/test_recipes",
}
STAY = {"conftest", "links", "small_settings", "__init__"}

# (old module, old name) -> new name; classes and public functions.
NAMES = {
    # solver
    ("problem", "Answer"): "Solution",
    ("problem", "Choice"): "Assignment",
    ("problem", "choice_of"): "assignment_of",
    ("tables", "Goal"): "ObjectiveArrays",
    ("tables", "Table"): "OptionTable",
    ("tables", "goal_of"): "objective_arrays",
    ("boxes", "Boxes"): "StageBoxes",
    ("boxes", "Plans"): "CoverPlans",
    ("boxes", "Solved"): "SolvedCover",
    ("boxes", "Fitting"): "FittingOptions",
    ("boxes", "Met"): "Incumbents",
    ("bounds", "Relaxed"): "RelaxedCovers",
    ("exact", "Listing"): "RankedAssignments",
    ("exact", "choices_below"): "assignments_below",
    ("exact", "_Joined"): "_JoinedOptions",
    ("exact", "_Search"): "_PartitionSearch",
    ("greedy", "Rows"): "BlockOptions",
    ("greedy", "_Walk"): "_LocalSearch",
    # hardware
    ("profiles", "Profile"): "DeviceProfile",
    ("profiles", "Links"): "PoolLinks",
    ("profiles", "_File"): "_ProfileFile",
    ("profiles", "_Number"): "_SourcedNumber",
    ("profiles", "_Whole"): "_SourcedInteger",
    ("constants", "Bounds"): "ConstantBounds",
    ("constants", "Constants"): "EngineConstants",
    ("constants", "known"): "constant_names",
    ("topology", "Wanted"): "PoolRequest",
    ("topology", "_Board"): "_FreeDevices",
    ("topology", "_Cell"): "_TensorGroupSpace",
    ("topology", "_Unit"): "_MachineDevices",
    ("architectures", "Attained"): "AttainedShares",
    # workload
    ("lengths", "Lengths"): "LengthDistribution",
    ("loads", "Load"): "NodeWorkload",
    ("loads", "loads"): "node_workloads",
    ("work", "Workload"): "StepWorkload",
    ("cuts", "Size"): "AdjustableSize",
    ("cuts", "Fault"): "SizeConflict",
    ("cuts", "Drawn"): "SamplerBatch",
    ("cuts", "Share"): "RankShare",
    ("cuts", "Cut"): "UpdatePartition",
    ("size_rules", "Rule"): "SizeRule",
    ("size_rules", "Blocks"): "EvenMinibatches",
    ("step_facts", "_Step"): "_StepReader",
    ("flops", "Pass"): "ModelPass",
    ("wire", "Extent"): "ValueExtent",
    ("wire", "Part"): "ValueColumn",
    ("setting", "Setting"): "PlanningProblem",
    # memory
    ("footprint_process", "Hosted"): "ProcessFootprint",
    ("footprint_process", "Moment"): "ProcessPeak",
    ("footprint_process", "_Case"): "_ProcessModel",
    ("footprint_training", "Training"): "TrainingSettings",
    ("footprint_training", "Trained"): "TrainingFootprint",
    ("footprint_training", "_Case"): "_StageModel",
    ("activations", "Widths"): "ActivationWidths",
    ("holding", "Stage"): "PipelineStage",
    ("holding", "Numbers"): "ShardedNumbers",
    ("largest_pass", "Pass"): "RowsPass",
    ("pool_peaks", "Held"): "PoolResident",
    ("pool_peaks", "Turn"): "PhaseTurn",
    # time
    ("collectives", "Tier"): "NetworkTier",
    ("training", "Tokens"): "PassTokens",
    ("training_layers", "Micro"): "MicroBatch",
    ("training_layers", "Block"): "ProductPair",
    ("training_parallel", "Held"): "DeviceNumbers",
    ("training_passes", "Passes"): "TrainingPasses",
    ("training_passes", "_Rank"): "_LayerRank",
    ("decode", "Replica"): "ServingReplica",
    ("transitions", "Sending"): "SyncMethod",
    # step
    ("steps", "Spot"): "ProgramPlacement",
    ("steps", "Outline"): "StepOutline",
    ("steps", "Staged"): "StagedNode",
    ("cycles", "_Net"): "_TaskNetwork",
    ("timeline", "Run"): "TaskRun",
    ("timeline", "Event"): "TimelineEvent",
    ("bubbles", "Bubble"): "IdleSpan",
    ("bubbles", "bubbles"): "idle_spans",
    ("schedule", "Task"): "ScheduledTask",
    ("schedule", "Wait"): "TaskWait",
    ("step_rows", "Row"): "TaskRow",
    ("step_rows", "step_rows"): "task_rows",
    ("barriers", "Barriers"): "StepBarriers",
    ("homes", "Home"): "RolePlacement",
    ("homes", "seat_for"): "device_group_for",
    ("role_costs", "Seat"): "DeviceGroup",
    ("memory_forecast", "Resident"): "PoolMemory",
    ("step_forecast", "_Worked"): "_TaskSeconds",
    # search
    ("finding", "Asked"): "PlanRequest",
    ("finding", "Found"): "SearchResult",
    ("finding", "_Played"): "_PlayedPlans",
    ("ranked", "Ranked"): "RankedPlan",
    ("ways", "Choice"): "RoleOption",
    ("ways", "Way"): "TimedLayout",
    ("choices", "Ways"): "RoleOptions",
    ("choices", "choices"): "role_options",
    ("choices", "all_choices"): "all_role_options",
    ("blocks", "Blocks"): "PoolOptions",
    ("blocks", "Sitting"): "PoolOption",
    ("blocks", "Offered"): "OptionSource",
    ("folding", "Columns"): "CombinedOptions",
    ("named", "Variant"): "PlacementVariant",
    ("named", "Sorted"): "SortedRoles",
    ("short", "Least"): "SmallestOption",
    ("short", "least"): "smallest_option",
    ("memory_knobs", "Changed"): "ReducedProblem",
    ("memory_knobs", "Knob"): "MemoryKnob",
    ("moves", "Here"): "CurrentPlan",
    ("moves", "Move"): "AlternativePool",
    ("moves", "Other"): "AlternativeLayout",
    ("moves", "moves"): "alternative_pools",
    ("moves", "layouts"): "alternative_layouts",
    ("late", "Late"): "StalenessOption",
    ("late", "least"): "best_staleness",
    ("late", "late_text"): "staleness_text",
    ("what_if", "Changed"): "WhatIf",
    # calibration
    ("calibrate", "Calibration"): "FittedConstants",
    ("calibrate", "Measured"): "MeasuredCase",
    ("calibrate", "Misses"): "ForecastErrors",
    ("calibrate", "misses"): "forecast_errors",
    ("measured_runs", "Repair"): "CalibrationResult",
    ("measured_runs", "_Forecasts"): "_RunForecasts",
    ("timing_names", "Matched"): "MatchedTimings",
    ("timing_names", "matched"): "match_timings",
    # report
    ("found_text", "Measure"): "ObjectiveMeasure",
    ("found_text", "found_text"): "search_report",
    ("found_text", "apart"): "is_disaggregated",
    ("moves_text", "moves_text"): "alternatives_text",
    ("comparison_picture", "comparison_picture"): "comparison_chart",
    ("timeline_picture", "timeline_picture"): "timeline_chart",
    ("search_picture", "search_picture"): "search_chart",
}

# Literal texts to be replaced at the end: doctests and calls that longer names made too long.
POLISH = {
    "placements/calibration/fit_constants.py": [
        (
            '    >>> scale_of([MeasuredCase("", 2.0, 1.0), MeasuredCase("", 3.0, 1.0), MeasuredCase("", 9.0, 1.0)], lambda case: case)\n',
            '    >>> scale_of([MeasuredCase("", seconds, 1.0) for seconds in (2.0, 3.0, 9.0)], lambda case: case)\n',
        ),
    ],
    "placements/memory/pool_peaks.py": [
        (
            '    >>> peaks = pool_peaks([PoolResident("a", f, sleeps=True), PoolResident("b", f)], [PhaseTurn("x", "a"), PhaseTurn("y", "b")])\n',
            '    >>> residents = [PoolResident("a", f, sleeps=True), PoolResident("b", f)]\n'
            '    >>> peaks = pool_peaks(residents, [PhaseTurn("x", "a"), PhaseTurn("y", "b")])\n',
        ),
    ],
    "placements/time/long_tail.py": [
        (
            "    >>> uneven_tokens(LengthDistribution.fixed(100), 64, 8), round(uneven_tokens(LengthDistribution((100.0, 300.0)), 64, 8))\n",
            "    >>> mixed = LengthDistribution((100.0, 300.0))\n"
            "    >>> uneven_tokens(LengthDistribution.fixed(100), 64, 8), round(uneven_tokens(mixed, 64, 8))\n",
        ),
    ],
    "placements/workload/lengths.py": [
        (
            "    >>> LengthDistribution.fixed(512).mean, LengthDistribution((100.0, 300.0)).mean, LengthDistribution((100.0, 300.0)).square_mean\n",
            "    >>> mixed = LengthDistribution((100.0, 300.0))\n"
            "    >>> LengthDistribution.fixed(512).mean, mixed.mean, mixed.square_mean\n",
        ),
    ],
    "placements/memory/largest_pass.py": [
        (
            '    >>> role, six, four = Role("m.train", "m", "train", ("m.update",)), LengthDistribution.fixed(6), LengthDistribution.fixed(4)\n',
            '    >>> role = Role("m.train", "m", "train", ("m.update",))\n'
            "    >>> six, four = LengthDistribution.fixed(6), LengthDistribution.fixed(4)\n",
        ),
    ],
    "placements/workload/size_rules.py": [
        (
            "    >>> nearest_values(5, [AtLeast(8)]), nearest_values(9, [AtMost(8), AtLeast(3)]), nearest_values(5, [EvenMinibatches(4, 4)])\n"
            "    ([8], [8], [4, 8])\n",
            "    >>> nearest_values(5, [AtLeast(8)]), nearest_values(9, [AtMost(8), AtLeast(3)])\n"
            "    ([8], [8])\n"
            "    >>> nearest_values(5, [EvenMinibatches(4, 4)])\n"
            "    [4, 8]\n",
        ),
    ],
    "tests/unit/placements/time/test_generation.py": [
        (
            "        shape(model), 80_000, LengthDistribution.fixed(prompt), LengthDistribution.fixed(response), layout, links(device), asked,\n",
            "        shape(model), 80_000, LengthDistribution.fixed(prompt), LengthDistribution.fixed(response), layout,\n"
            "        links(device), asked,\n",
        ),
    ],
}
