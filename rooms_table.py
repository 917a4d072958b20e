"""Where each module of `flowgraph` goes. Keys and values are dotted names below `flowgraph`."""

MOVES = {
    # files: what is read from and kept on disk, by anyone
    "foreign": "files.untrusted",
    "hashes": "files.hashes",
    "shipped": "files.shipped",
    # language
    "values": "language.values",
    "loss": "language.loss",
    "graph": "language.graph",
    "keys": "language.keys",
    "traits": "language.traits",
    "signature": "language.signature",
    "dsl": "language.flow",
    "evaluate": "language.region",
    "arithmetic": "language.arithmetic",
    "rows": "language.rows",
    "counts": "language.mask_counts",
    "description": "language.description",
    "hints": "language.hints",
    "spec": "language.laws",
    "laws.calls": "language.call_laws",
    "executors.base": "language.handle",
    # cluster
    "cluster": "cluster.cluster",
    "cluster_text": "cluster.short_form",
    "machine": "cluster.this_machine",
    "calibration": "cluster.calibration",
    "plan": "cluster.plan",
    # analysis
    "facts": "analysis.facts",
    "state": "analysis.state",
    "roles": "analysis.roles",
    "store": "analysis.flat_graph",
    "passes.order_nodes": "analysis.node_order",
    # checks
    "laws.described": "checks.described",
    "laws.facts": "checks.facts",
    "laws.fits": "checks.fits",
    "laws.named": "checks.named",
    "check_plan": "checks.placed",
    "lowering.check_program": "checks.lowered",
    # serialize
    "text": "serialize.graph_text",
    "placed_text": "serialize.placed_text",
    "restore": "serialize.graph",
    "lowering.program_store": "serialize.program",
    # flows: a flow that is found, and its settings
    "files": "flows.flow_files",
    "entry_points": "flows.entry_points",
    "settings": "flows.settings",
    # models
    "models.quiet": "models.silence_transformers",
    "models.seeded": "models.seeded_init",
    "models.mixers": "models.layer_kinds",
    "models.shapes": "models.sizes",
    "models.known": "models.listing",
    # engines
    "engines.sglang_launch": "engines.sglang.sglang_launch",
    "engines.vllm_launch": "engines.vllm.vllm_launch",
    "engines.vllm_worker": "engines.vllm.vllm_worker",
    "engines.environments": "engines.servers.environments",
    "engines.versions": "engines.servers.versions",
    "executors.sglang": "engines.sglang.server",
    "executors.sglang_http": "engines.sglang.http",
    "executors.vllm": "engines.vllm.server",
    "executors.vllm_http": "engines.vllm.http",
    "executors.engine": "engines.servers.server_engine",
    "executors.servers": "engines.servers.server_process",
    "executors.served": "engines.servers.remote_model",
    "executors.router": "engines.servers.router",
    "runtime.process_groups": "engines.servers.process_groups",
    "executors.local": "engines.local.model",
    "executors.fsdp": "engines.fsdp.model",
    "executors.ranks": "engines.fsdp.ranks",
    "executors.sharding": "engines.fsdp.sharding",
    "executors.recomputing": "engines.fsdp.activation_checkpointing",
    "executors.sequence": "engines.forward_pass.sequence_parallel",
    "executors.attention": "engines.forward_pass.attention",
    "executors.buckets": "engines.forward_pass.buckets",
    "executors.packing": "engines.forward_pass.packing",
    "executors.packed": "engines.forward_pass.packed",
    "executors.packable": "engines.forward_pass.packing_probe",
    "executors.padded": "engines.forward_pass.padded",
    "executors.forward": "engines.forward_pass.forward",
    "executors.chunked_head": "engines.forward_pass.chunked_head",
    "executors.decode": "engines.forward_pass.decode",
    "executors.optimizers": "engines.model_state.optimizers",
    "executors.finite": "engines.model_state.nonfinite",
    "executors.reading": "engines.model_state.handle_rules",
    "executors.keeping": "engines.model_state.handle_state",
    "executors.shards": "engines.model_state.sharded_checkpoint",
    "executors.weight_paths": "engines.weight_sync.weight_transports",
    "executors.weight_updates": "engines.weight_sync.weight_updates",
    "executors.weight_checks": "engines.weight_sync.weight_checks",
    # runtime
    "runtime.execute": "runtime.interpreter",
    "runtime.in_process": "runtime.local",
    "runtime.identity": "runtime.row_identity",
    "runtime.sharing": "runtime.row_sharding",
    "runtime.ray_places": "runtime.ray.places",
    "runtime.ray_session": "runtime.ray.session",
    "runtime.ray_start": "runtime.ray.start",
    "runtime.device": "runtime.ray.device",
    "runtime.watch": "runtime.ray.supervision",
    "runtime.ship": "runtime.ray.code_shipping",
    "runtime.exposure": "runtime.ray.open_ports",
    "runtime.stacks": "runtime.ray.stack_dump",
    "runtime.deadlines": "runtime.ray.deadlines",
    "runtime.weight_routes": "runtime.ray.weight_routes",
    "runtime.measure": "runtime.measure.measured_task",
    "runtime.measured_file": "runtime.measure.measured_file",
    "runtime.measured_step": "runtime.measure.measured_step",
    "runtime.measured_trace": "runtime.measure.measured_trace",
    "runtime.profiling": "runtime.measure.profiling",
    "runtime.measured_picture": "diagrams.build.measured_picture",
    "runtime.record": "runtime.record.run_folder",
    "runtime.recorder": "runtime.record.recorder",
    "runtime.run_facts": "runtime.record.run_facts",
    "runtime.checkpoint": "runtime.record.checkpoint",
    "runtime.saver": "runtime.record.saver",
    "runtime.carried": "runtime.record.carried_state",
    "runtime.fingerprint": "runtime.record.fingerprint",
    # diagrams
    **{
        f"diagrams.{name}": f"diagrams.model.{new}"
        for name, new in {
            "picture": "picture",
            "charts": "charts",
            "sequence": "sequence",
            "drawing": "drawing",
            "series": "series",
            "amounts": "quantities",
            "layout_text": "layout_text",
            "arrow_sizes": "arrow_sizes",
            "labels": "labels",
            "ticks": "ticks",
        }.items()
    },
    **{
        f"diagrams.{name}": f"diagrams.build.{new}"
        for name, new in {
            "flow_picture": "flow_picture",
            "plan_picture": "plan_picture",
            "roles_picture": "roles_picture",
            "sequence_picture": "sequence_picture",
            "memory_picture": "memory_picture",
            "diff_picture": "diff_picture",
            "device_boxes": "device_boxes",
            "node_about": "node_about",
            "lanes_beside": "measured_lanes",
        }.items()
    },
    **{
        f"diagrams.{name}": f"diagrams.write.svg.{name}"
        for name in (
            "comparison_svg curves graph_svg lanes_svg memory_svg memory_columns scatter_svg sequence_svg svg_frame "
            "geometry layout label_places legend text_width time_axis png"
        ).split()
    },
    **{
        f"diagrams.{name}": f"diagrams.write.terminal.{name}"
        for name in "terminal_flow terminal_places terminal_scales terminal_tables sparkline".split()
    },
    "diagrams.notebook": "diagrams.notebook",
    "diagrams.svg": "diagrams.write.svg.any_picture",
    "diagrams.terminal": "diagrams.write.terminal.any_picture",
    "diagrams.mermaid": "diagrams.write.mermaid.flowchart",
    "diagrams.rails": "diagrams.write.terminal.line_layout",
    **{
        f"diagrams.{name}": f"diagrams.write.mermaid.{name}"
        for name in "mermaid_gantt mermaid_memory mermaid_sequence".split()
    },
    "diagrams.plain": "diagrams.write.json_codec",
    **{
        f"diagrams.{name}": f"diagrams.write.{name}"
        for name in "as_data check_drawing formats text_formats dot page tables palette style".split()
    },
    # cli
    "cli.setting": "cli.planning_request",
    "cli.standing": "cli.run_state",
    "cli.places": "cli.runtime_launch",
    "cli.subject": "cli.draw_target",
    "cli.answers": "cli.eval_commands",
    "cli.drawings": "cli.draw_commands",
    "cli.planner": "cli.plan_commands",
    "cli.app": "cli.commands",
    "cli.costed": "cli.search_command",
    "cli.reforecast": "cli.replan",
    "cli.inputs": "cli.flow_request",
    "cli.lists": "cli.listings",
}

# Modules outside `flowgraph`, in full.
OTHERS = {
    "nodes.interop.letters": "nodes.interop.char_reader",
    "nodes.interop.told": "nodes.interop.export_notes",
    "nodes.interop.job": "nodes.interop.export_spec",
    "nodes.interop.as_run": "nodes.interop.readback",
}

# Folders of data that move whole.
DATA = {"flowgraph/diagrams/templates": "flowgraph/diagrams/write/templates"}

# Packages that disappear (what is in them has moved), and where text about them points.
FOLDERS = {"executors": "engines", "laws": "checks"}

# Where a module that this table does not know goes, by the folder that it stands in today ("" is the top).
DEFAULT_ROOM = {
    "": "language",
    "executors": "engines.model_state",
    "laws": "checks",
    "diagrams": "diagrams.write",
}

# Modules whose names are kept where a `:` follows: graphs on disk name types and ops so (`flowgraph.values:Mask`).
STORED = {"values", "loss", "arithmetic", "store", "dsl"}

# Tests without a module of their name: the room that they go to, and their name there.
TESTS = {
    "test_adapters": "engines/model_state/test_adapters",
    "test_corrections": "checks/test_corrections",
    "test_driver": "runtime/test_driver",
    "test_engines": "engines/test_engines",
    "test_errors": "errors/test_errors",
    "test_fsdp": "engines/fsdp/test_model",
    "test_fsdp_heads": "engines/fsdp/test_heads",
    "test_graph_passes": "passes/test_graph_passes",
    "test_heads": "models/test_heads",
    "test_hostile_sums": "engines/forward_pass/test_hostile_sums",
    "test_hosting": "runtime/test_hosting",
    "test_in_process": "runtime/test_local",
    "test_interrupts": "cli/test_interrupts",
    "test_lowering": "lowering/test_lowering",
    "test_lowering_passes": "lowering/test_lowering_passes",
    "test_passes": "passes/test_passes",
    "test_refusals": "errors/test_refusals",
    "test_batch": "runtime/test_batch",
    "test_weights": "runtime/test_weights",
    "test_worker": "runtime/test_worker",
    "test_decode": "engines/forward_pass/test_decode",
    "test_local": "engines/local/test_model",
    "test_ranks": "engines/fsdp/test_ranks",
    "test_spec": "checks/test_laws",
    "executors/replicas": "engines/servers/replicas",
    "executors/test_sglang_servers": "engines/sglang/test_servers",
    "executors/test_sglang_http": "engines/sglang/test_http",
    "executors/test_vllm_http": "engines/vllm/test_http",
    "runtime/test_loggers": "runtime/test_loggers",
    "runtime/test_serving": "runtime/test_serving",
    "runtime/test_scratch": "runtime/test_scratch",
    "diagrams/drawings": "diagrams/drawings",
    "diagrams/test_hostile_names": "diagrams/test_hostile_names",
    "diagrams/test_hostile_names_in_svg": "diagrams/test_hostile_names_in_svg",
    "diagrams/test_large_pictures": "diagrams/test_large_pictures",
    "diagrams/test_scaled_svg": "diagrams/test_scaled_svg",
    "diagrams/test_notebook": "diagrams/test_notebook",
    "diagrams/test_mermaid": "diagrams/write/mermaid/test_flowchart",
    "conftest": "conftest",
    "test_device": "runtime/ray/test_device",
    "test_exposure": "runtime/ray/test_open_ports",
    "test_identity": "runtime/test_row_identity",
    "test_ray_session": "runtime/ray/test_session",
    "test_ray_start": "runtime/ray/test_start",
    "test_record": "runtime/record/test_run_folder",
    "test_sharing": "runtime/test_row_sharding",
    "test_ship": "runtime/ray/test_code_shipping",
    "test_stacks": "runtime/ray/test_stack_dump",
    "test_watch": "runtime/ray/test_supervision",
    "test_weight_routes": "runtime/ray/test_weight_routes",
}
