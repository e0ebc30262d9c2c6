# Two commands, from nothing but Python 3.11+ and make:
#   make reproduce   the theorem and the paper's experiment, in one report.html  (ARGS="bounds --quick" for less)
#   make test        runs every check that guards it                         (ARGS="-k policies" for fewer)
# Both build .venv once, against constraints.txt; after that they start at once. And a third, in .venv-oldest:
#   make test-oldest runs the tests with the oldest Python and packages that pyproject.toml allows

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
OLDEST := .venv-oldest
# Modules are compiled as they are imported: all of them at once takes a minute.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable
# A usable Python is new enough and can make a virtual environment. PYTHON=... overrides the search.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)

.PHONY: help reproduce test test-oldest clean

help:
	@sed -n '2,5s/^#   //p' Makefile

reproduce: $(VENV)/installed-reproduce
	$(BIN)/sharpmax reproduce $(ARGS)

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -n 2 $(ARGS)

# Old versions warn of one another. Left out are the tests of what reads the source and of what is pinned.
test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/pytest -n 2 -o filterwarnings=default --ignore tests/test_imports.py --ignore tests/test_makefile.py $(ARGS)

#   make tables       writes the tables of README and docs from results/; a test checks that this changes nothing
.PHONY: tables
tables: $(VENV)/installed-test
	$(BIN)/python -m tools.tables

clean:
	rm -rf $(VENV) $(OLDEST)

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
