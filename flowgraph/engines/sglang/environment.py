"""SGLang's environment on a CPU: its packages."""

from __future__ import annotations

from flowgraph.engines.servers.environments import Environment

# SGLang's own pins hold CUDA builds that a CPU has no use for, so it is installed without its dependencies, beside
# what it imports on a CPU.
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
    alone=("sglang==0.5.23", "triton==3.7.1", "torchvision==0.28.0", "xgrammar==0.2.7"),
)
