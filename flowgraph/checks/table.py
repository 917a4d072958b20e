"""The table of laws by stage, with the code that holds each law."""

from __future__ import annotations

from flowgraph.analysis.flat_graph import full_hash, structure_hash, to_json
from flowgraph.checks.described import (
    check_readers_can_run_first,
    check_state_is_returned,
    check_values_belong_to_flow,
    check_versions_are_consumed_once,
)
from flowgraph.checks.facts import (
    check_corrections_match_use,
    check_distributions_match,
    check_rows_have_one_origin,
    check_staleness_is_corrected,
    check_weights_match_ports,
)
from flowgraph.checks.in_flight import check_groups_are_taken_once, check_in_flight_roles, check_ready_roles
from flowgraph.checks.lowered import (
    check_home_versions,
    check_nodes_run_once,
    check_parts_suffice,
    check_reads_are_available,
    check_results_reach_host,
    check_sleeping_homes,
    check_syncs_respect_lag_bounds,
    check_update_order,
    check_values_are_made_before_reads,
)
from flowgraph.checks.named import (
    check_calls_fit_ops,
    check_masks_are_counted,
    check_names_are_unique,
    check_no_dropped_calls,
    check_no_duplicate_nodes,
)
from flowgraph.checks.overlap import (
    check_ahead_reads,
    check_plan_is_followed,
    check_schedule,
    check_sleeping_copies,
    check_staleness_bound,
)
from flowgraph.checks.placed import (
    check_engines_run_roles,
    check_lags_are_allowed,
    check_plan_matches_graph,
    check_pools_hold_devices,
    check_roles_are_placed_once,
)
from flowgraph.checks.streaming import (
    check_chunks_are_complete,
    check_chunks_are_read,
    check_chunks_can_be_handed_out,
    check_chunks_share_a_step,
)
from flowgraph.checks.written_tokens import check_masks_are_of_written_tokens
from flowgraph.language.call_laws import check_op, check_region, check_result
from flowgraph.language.handle import SampleRequest
from flowgraph.language.keys import Key
from flowgraph.language.laws import Law, Laws
from flowgraph.language.loss import Loss
from flowgraph.language.region import BoundRegion, SharedForward
from flowgraph.language.values import Kind

LAWS: Laws = {
    "call": (
        Law(3, "terms", "a loss is a list of terms, each over the one mask that its node takes", (check_op, Loss)),
        Law(4, "kinds", "a value is row, row x token, scalar, model or state", (Kind, check_result)),
        Law(4, "identity", "a node that makes, drops or reorders rows returns their ids too", check_op),
        Law(10, "separable", "a node that reads all rows together cannot be in a loss", check_region),
    ),
    "described": (
        Law(0, "one flow", "a graph holds only values of its own parameters and nodes", check_values_belong_to_flow),
        Law(1, "versions", "at most one update consumes a version of weights", check_versions_are_consumed_once),
        Law(1, "readers first", "its readers can run before that update", check_readers_can_run_first),
        Law(2, "state", "state comes in and goes out, and none is lost", check_state_is_returned),
        Law(4, "rows", "values that are read row by row have the same rows", check_rows_have_one_origin),
        Law(4, "makers", "a value was made by the weights that its port asks for", check_weights_match_ports),
        Law(4, "lag", "a loss on rows of stale weights corrects for it", check_staleness_is_corrected),
        Law(4, "corrected", "a correction applies to the ratio that it is used with", check_corrections_match_use),
        Law(4, "written", "a loss counts only tokens that the policy wrote", check_masks_are_of_written_tokens),
        Law(8, "temperature", "values that are compared are of one distribution", check_distributions_match),
    ),
    "named": (
        Law(4, "ports", "an input fits its port, and a setting its range", check_calls_fit_ops),
        Law(12, "names", "every node has a unique name", check_names_are_unique),
        Law(3, "counts", "a loss says which masks are counted over all ranks", check_masks_are_counted),
        Law(0, "nothing twice", "no two pure nodes compute the same", check_no_duplicate_nodes),
        Law(0, "nothing dropped", "a call that nothing reads is removed and reported", check_no_dropped_calls),
    ),
    "placed": (
        Law(11, "structure", "a plan is for the graph of its structure", check_plan_matches_graph),
        Law(0, "pools", "a pool holds devices that exist and that no other pool holds", check_pools_hold_devices),
        Law(14, "layouts", "an engine declares as data what it can run", check_engines_run_roles),
        Law(0, "roles", "every role is placed once", check_roles_are_placed_once),
        Law(1, "bounds", "a copy lags no further than the flow lets it", check_lags_are_allowed),
        Law(9, "early", "groups are handed out early by what can", check_chunks_can_be_handed_out),
        Law(1, "in flight", "rows that newer weights go on with are recorded and trained on", check_in_flight_roles),
        Law(
            1,
            name="ready",
            says="groups that are trained on as they finish can be, each within the bound",
            holders=check_ready_roles,
        ),
    ),
    "lowered": (
        Law(13, "reads", "a value is available where it is read", check_reads_are_available, since="insert_transfers"),
        Law(13, "weights", "a home has the version of weights that is read", check_home_versions, since="insert_syncs"),
        Law(0, "made", "a value was made before it is read", check_values_are_made_before_reads, since="place_nodes"),
        Law(0, "once", "every node runs once", check_nodes_run_once, since="place_nodes"),
        Law(13, "results", "results reach the host", check_results_reach_host, since="insert_transfers"),
        Law(1, "in order", "readers of a version run before its update", check_update_order, since="place_nodes"),
        Law(5, "parts", "every part of a record that is read travels", check_parts_suffice, since="project_columns"),
        Law(10, "early readers", "groups that finish early are read", check_chunks_are_read, since="stream_groups"),
        Law(10, "chunks", "each chunk is read once and put back", check_chunks_are_complete, since="stream_groups"),
        Law(
            0,
            "taken",
            "groups that finish are taken once, and then read",
            check_groups_are_taken_once,
            since="take_groups",
        ),
        Law(0, "asleep", "a home that sleeps steps aside for others", check_sleeping_homes, since="insert_switches"),
        Law(1, "syncs", "a sync keeps the bound of its readers", check_syncs_respect_lag_bounds, since="insert_syncs"),
        Law(
            1,
            name="as planned",
            says="steps overlap as planned",
            holders=check_plan_is_followed,
            since="pipeline_steps",
        ),
        Law(
            1,
            name="stale",
            says="no weights are older than a read allows",
            holders=check_staleness_bound,
            since="pipeline_steps",
        ),
        Law(
            10,
            name="one step",
            says="the chunks of a step are read in it",
            holders=check_chunks_share_a_step,
            since="pipeline_steps",
        ),
        Law(
            2,
            name="own step",
            says="carried state is read in its own step",
            holders=check_ahead_reads,
            since="pipeline_steps",
        ),
        Law(
            0,
            name="filled",
            says="a copy that sleep empties is filled again",
            holders=check_sleeping_copies,
            since="pipeline_steps",
        ),
        Law(
            1,
            name="one writer",
            says="a version is replaced after its last reader",
            holders=check_schedule,
            since="pipeline_steps",
        ),
    ),
    "run": (
        Law(5, "bodies", "a body sees padded [B, T]; ragged on the wire", (check_result, "runtime.batch")),
        Law(6, "keys", "random numbers are named by seed, step, node, prompt, sample, position", Key),
        Law(7, "micro-batches", "every rank runs the same number; none samples on shards", BoundRegion.level),
        Law(8, "one forward", "full logits stay in the model; one pass for all", SharedForward),
        Law(9, "requests", "sampling is one asynchronous request; a batch is a gather", SampleRequest),
        Law(11, "two hashes", "of the structure, and of everything", (structure_hash, full_hash)),
        Law(
            12, "flat", "graphs travel as flat JSON, with a user's files", (to_json, "runtime.ray.code_shipping.stage")
        ),
        Law(13, "a store per pool", "the local executor runs the lowered program too", "runtime.interpreter.Executor"),
    ),
}
