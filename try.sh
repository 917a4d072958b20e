cd ${1:-WORK/w-r2}; export PYTHONPATH=$PWD PATH=CHECKOUT/.venv/bin:$PATH OMP_NUM_THREADS=1 PYRIGHT_PYTHON_IGNORE_WARNINGS=1
python ROOMS/move_flowgraph.py && ruff check --output-format concise . | tail -15
python -c "
import pkgutil,importlib,flowgraph
for m in pkgutil.walk_packages(flowgraph.__path__,'flowgraph.'):
    if any(x in m.name for x in ('launch','vllm_worker','__main__','examples','template_probe')) : continue
    try: importlib.import_module(m.name)
    except Exception as e: print(m.name, type(e).__name__, e)
"
