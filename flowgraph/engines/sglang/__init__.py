"""SGLang's servers. Also modelled: experts over replicas, narrower weights. Source: its server arguments."""

from __future__ import annotations

from flowgraph.engines.capabilities import EVERYWHERE, MAX_RANKS, EngineCapabilities, Support
from flowgraph.engines.servers.environments import EngineVersions, Environment, VersionTraits
from flowgraph.errors.distribution import install_command

# Source: the wheels of these versions. 0.5.18 to 0.5.21 pin torch 2.13.0 and transformers 5.12.1; 0.5.22 and 0.5.23
# pin torch 2.14.1. Only 0.5.23 was run by us, on a CPU with torch 2.13.0.
SGLANG = EngineVersions(
    "SGLang",
    {
        "0.5.18": VersionTraits(session=False),
        "0.5.19": VersionTraits(session=False),
        "0.5.20": VersionTraits(session=False),
        "0.5.21": VersionTraits(session=True),
        "0.5.22": VersionTraits(session=True),
        "0.5.23": VersionTraits(session=True, tried=("cpu",), masks=True),
    },
    hint=f"on a CPU: flowgraph engines install sglang-cpu; on a GPU: {install_command('sglang')}",
)

# SGLang's own pins hold CUDA builds that a CPU has no use for, so it is installed without its dependencies, in
# addition to the packages that it imports on a CPU.
SGLANG_CPU = Environment(
    name="sglang-cpu",
    package="sglang",
    about="SGLang's server on a CPU, for Llama-shaped models",
    disk_gb=2.3,
    resolved=(
        *("torch==2.13.0", "transformers==5.19.0", "tokenizers==0.23.2", "numpy", "aiohttp", "apache-tvm-ffi==0.1.11"),
        *("fastapi", "uvicorn", "uvloop", "orjson", "pyzmq", "msgspec", "psutil", "pybase64", "pydantic"),
        *("python-multipart", "prometheus-client", "requests", "setproctitle", "einops", "pillow", "packaging", "tqdm"),
        *("jsonschema", "interegular", "partial_json_parser", "sentencepiece==0.2.1", "IPython", "dill"),
        *("compressed-tensors==0.18.0", "gguf", "openai==2.8.0", "soundfile==0.13.1"),
    ),
    unresolved=("sglang==0.5.23", "triton==3.7.1", "torchvision==0.28.0", "xgrammar==0.2.7"),
)

ENGINE = EngineCapabilities(
    name="sglang",
    hands_out=True,
    order=2,
    versions=SGLANG,
    environment=SGLANG_CPU,
    extra="sglang",
    verbs=frozenset({"sample", "weights"}),
    supported=Support(
        devices=EVERYWHERE,
        data=MAX_RANKS,
        tensor=64,
        settings={
            "precision": ("float32", "bfloat16"),
            "cache_share": (),
            "sleeps": (),
            "weights_by": (),
            "contract": (),
            "hold": (),
        },
    ),
    modelled=Support(devices=EVERYWHERE, data=MAX_RANKS, tensor=64, expert=MAX_RANKS, settings=None),
    server="flowgraph.engines.sglang.server:Sglang",
    not_sampled=frozenset({"repetition_penalty"}),  # 0.5.23 penalizes tokens of the response, and not of the context
    not_together=(("top_k", "top_p"),),  # it takes both of the whole distribution; transformers and vLLM in turn
)
