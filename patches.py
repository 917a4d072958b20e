"""Small changes of text that a move asks for, by the file's new path: (path, old, new)."""

ROOM_DOCS = {
    "files": '"""Files that anyone may have written, read with bounds; hashes of files; where the shipped flows lie."""',
    "language": '"""The language: values, nodes, losses and flows, the graph that they make, and the laws of one call."""',
    "cluster": '"""Clusters, plans and calibrations as data: they import errors, files and pydantic only."""',
    "analysis": '"""What is read from a graph alone: facts, roles, carried state, the order of nodes, its flat form and hashes."""',
    "checks": '"""The laws, by the stage of a graph that each is about: one table, and the functions that hold them."""',
    "serialize": '"""Graphs and programs as text and JSON, out and in."""',
    "flows": '"""Flows as users name them: in files, shipped, in installed packages; and where each setting comes from."""',
    "engines/servers": '"""What engines with servers of their own share: environments, processes, requests and routing."""',
    "engines/forward_pass": '"""Forward passes of transformers models: padded, packed, chunked, over peers; and decoding."""',
    "engines/model_state": '"""What engines on torch share about a model: its optimizers, its rules, its state on disk."""',
    "engines/weight_sync": '"""New weights for running servers: the transports, the updates, and the checks after one."""',
    "runtime": '"""What runs a program: the driver, the interpreter, its places, and what a run writes."""',
    "runtime/ray": '"""A program on Ray: an actor for each device, watched over, with weights and code brought to them."""',
    "runtime/measure": '"""What a run measures: tasks, steps, profiles, and the file that keeps them."""',
    "runtime/record": '"""A run\'s folder: what is written there, checkpoints, and what says whether a run can go on."""',
    "diagrams": '"""Pictures: as data (`model`), made of flows, plans and runs (`build`), and in a format (`write`)."""',
    "diagrams/model": '"""Pictures as data, and the words and numbers on them."""',
    "diagrams/build": '"""Pictures of flows, plans, programs and runs."""',
    "diagrams/write": '"""Pictures as SVG, Mermaid, DOT, JSON, pages and text for a terminal."""',
    "diagrams/write/svg": '"""Pictures as SVG and PNG."""',
    "diagrams/write/mermaid": '"""Pictures as Mermaid text."""',
    "diagrams/write/terminal": '"""Pictures for a terminal."""',
}

PATCHES = [
    ("tests/unit/flowgraph/runtime/record/test_checkpoint.py", "ray::Device.save_state", "ray::RankActor.save_state"),
    ("tests/unit/flowgraph/runtime/ray/test_supervision.py", '("ray::Device", True)', '("ray::RankActor", True)'),
    ("tests/cli/test_faults.py", '"ray::Device"', '"ray::RankActor"'),
    ("tests/cli/test_resume.py", '"ray::Device"', '"ray::RankActor"'),

    (
        "flowgraph/runtime/measure/measured_step.py",
        """    >>> timed([Measured("sync", "sync", "p.sample", "a", 0, 0.0, 2.0), Measured("sync", "sync", "", "b", 0, 2.0, 0.5)])
""",
        """    >>> sent = Measured("sync", "sync", "p.sample", "a", 0, 0.0, 2.0)
    >>> timed([sent, Measured("sync", "sync", "", "b", 0, 2.0, 0.5)])
""",
    ),
    (
        "nodes/interop/imported.py",
        """    >>> machines_of([Shared(("a",), 12, 6), Shared(("b",), 4, 2)]), machines_of([Shared(("a",), 16, 4)])
    ((2, 8), (4, 4))
""",
        """    >>> machines_of([Shared(("a",), 12, 6), Shared(("b",), 4, 2)])
    (2, 8)
    >>> machines_of([Shared(("a",), 16, 4)])
    (4, 4)
""",
    ),

    (
        "flowgraph/runtime/ray/device.py",
        '"""Run a task as `Device.run` does, in whatever process this is; its temporary files go with the run\'s `scratch`.',
        '"""Run a task as `Device.run` does, in whatever process this is; its files go with the run\'s `scratch`.',
    ),
    (
        "flowgraph/serialize/program.py",
        "out and in: the graph as `flowgraph.analysis.flat_graph` writes it, the plan,",
        "out and in: the graph as `flat_graph` writes it, the plan,",
    ),
    (
        "placements/footprint_serving.py",
        "where nothing is said: `flowgraph.engines.servers.server_engine`, and",
        "where nothing is said: `server_engine`, and",
    ),
    ("placements/profiles.py", "as `flowgraph.cluster.short_form.read_cluster` asks", "as `cluster.short_form.read_cluster` asks"),
    (
        "tests/unit/flowgraph/diagrams/build/test_flow_picture.py",
        "import flow_picture; from flowgraph.diagrams.write.mermaid.flowchart import mermaid\\n\"",
        "import flow_picture\\n\"\n        \"from flowgraph.diagrams.write.mermaid.flowchart import mermaid\\n\"",
    ),

    ("flowgraph/engines/sglang/server.py", 'launcher = "sglang_launch.py"', 'launcher = "sglang/sglang_launch.py"'),
    ("flowgraph/engines/vllm/server.py", 'launcher = "vllm_launch.py"', 'launcher = "vllm/vllm_launch.py"'),
    (
        "flowgraph/engines/vllm/vllm_launch.py",
        "    sys.path.append(str(Path(__file__).parent))  # at the end: only for these two, and for `vllm_worker`\n",
        "    here = Path(__file__).parent\n"
        "    sys.path += [str(here), str(here.with_name(\"sglang\"))]  # at the end: for `vllm_worker`, and `sglang_launch`\n",
    ),
    (
        "flowgraph/engines/vllm/vllm_launch.py",
        "as for SGLang (`sglang_launch`, whose neighbour this is), so\nthat no key",
        "as for SGLang (`sglang_launch`, in the folder beside this), so\nthat no key",
    ),
    # What a stored graph names is named without its room: moving a module changes no hash, and old plans stay valid.
    (
        "flowgraph/analysis/flat_graph.py",
        """    \"\"\"Name a class or function by module and name.\"\"\"
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
""",
        """    \"\"\"Name a class or function by module and name; one of the language without its room, as `flowgraph.values:Mask`.

    So that no hash of a graph depends on the room of a module, and a plan outlives its moves.
    \"\"\"
    return f"{stored_module(getattr(thing, '__module__', ''))}:{getattr(thing, '__qualname__', '')}"


def stored_module(module: str) -> str:
    \"\"\"Return the name of a module as graphs on disk have it.

    >>> stored_module("flowgraph.language.values"), stored_module("nodes.values")
    ('flowgraph.values', 'nodes.values')
    \"\"\"
    inner = module.removeprefix(ROOM)
    return f"flowgraph.{inner}" if module.startswith(ROOM) and inner in STORED else module


def loaded_module(module: str) -> str:
    \"\"\"Return the name under which Python knows a module that a graph on disk names.

    >>> loaded_module("flowgraph.values"), loaded_module("flowgraph.cli.run")
    ('flowgraph.language.values', 'flowgraph.cli.run')
    \"\"\"
    inner = module.removeprefix("flowgraph.")
    return ROOM + inner if module.startswith("flowgraph.") and inner in STORED else module
""",
    ),
    (
        "flowgraph/analysis/flat_graph.py",
        "SCHEMA = 2\n",
        "SCHEMA = 2\nROOM = \"flowgraph.language.\"\nSTORED = frozenset({\"arithmetic\", \"loss\", \"values\"})  # modules whose names stand in graphs on disk\n",
    ),
    ("flowgraph/analysis/flat_graph.py", '"op": f"{node.op.module}:', '"op": f"{stored_module(node.op.module)}:'),
    ("flowgraph/serialize/graph.py", '    module, _, path = name.partition(":")\n', '    module, _, path = name.partition(":")\n    module = loaded_module(module)\n'),
    ("flowgraph/serialize/graph.py", "import SCHEMA, full_hash, name_of,", "import SCHEMA, full_hash, loaded_module, name_of,"),

    ("flowgraph/language/graph.py", "Path(__file__).parent / 'examples'", "Path(__file__).parents[1] / 'examples'"),
    ("flowgraph/files/shipped.py", "Path(__file__).resolve().parent\n", "Path(__file__).resolve().parents[1]\n"),
    ("flowgraph/flows/flow_files.py", "Path(__file__).resolve().parent.parent", "Path(__file__).resolve().parents[2]"),
    ("flowgraph/diagrams/write/svg/svg_frame.py", 'Path(__file__).with_name("templates")', 'Path(__file__).parents[1] / "templates"'),
    ("tests/unit/flowgraph/language/test_graph.py", "from flowgraph import graph\\n", "from flowgraph.language import graph\\n"),
    ("tests/unit/flowgraph/language/test_graph.py", "graph.__file__.replace('graph.py', 'examples/grpo.py')", "graph.__file__.replace('language/graph.py', 'examples/grpo.py')"),
]
