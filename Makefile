# multihead: `make checkup` runs the main job on a real model, `make test` runs what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3
# TORCH=system: use the torch that $(PYTHON) already has instead of installing one.
TORCH ?= pip
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
# Installed again only when the contents of these files change, whatever their dates say.
HASH := $(shell cat constraints.txt pyproject.toml | sha256sum | cut -c1-16)-$(TORCH)
KERNEL_HASH := $(shell cat CMakeLists.txt csrc/* | sha256sum | cut -c1-16)
BASE := $(VENV)/.base-$(HASH)
DEV := $(VENV)/.dev-$(HASH)
KERNEL := $(VENV)/.kernel-$(HASH)-$(KERNEL_HASH)
CONSTRAINTS := $(VENV)/constraints.txt
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar off -c $(CONSTRAINTS)
# Built in $(VENV) with its own cmake, so that what was compiled before is not compiled again.
HERE := $(PIP) --no-build-isolation -e

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONNOUSERSITE := 1
export HF_HUB_OFFLINE := 1
# An install that could not compile the kernel fails here; 0 goes on without it, as `pip install` does.
export MULTIHEAD_REQUIRE_NATIVE ?= 1
unexport PYTHONPATH

.PHONY: help venv checkup test test-all fuzz check fmt bench docs clean
help:
	@echo "make checkup   set up $(VENV), measure every head of MiniLM, leave checkup/index.html"
	@echo "make test      linters, types, quick tests  make test-all  the slow ones too     make fuzz  laws, longer"
	@echo "make check     linters and types only    make fmt       format                make clean"
	@echo "make bench     cost of a checkup (5 min)  make docs      build/docs/index.html"
	@echo "Options: PYTHON=python3.11 (any 3.11 or newer), TORCH=system (reuse the torch that PYTHON has),"
	@echo "         MULTIHEAD_REQUIRE_NATIVE=0 (go on where there is no C++ compiler)"

venv: $(DEV) $(KERNEL)

$(CONSTRAINTS): constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "multihead needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	cp constraints.txt $@

$(BASE): $(CONSTRAINTS)
	@echo "Setting up $(VENV): about a minute after downloads."
ifeq ($(TORCH),system)
	@# A .pth file shows the virtual environment the packages beside that torch; its own come first.
	$(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' > $(VENV)/system-torch
	cp $(VENV)/system-torch "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/system-torch.pth"
	sed -i -E '/^(torch|triton|numpy)==/d' $(CONSTRAINTS)
endif
	$(PIP) scikit-build-core cmake ninja
	$(HERE) '.[hf,images]'
	rm -f $(VENV)/.base-* $(VENV)/.dev-* $(VENV)/.kernel-*
	touch $@ $(KERNEL)

$(DEV): $(BASE)
	$(HERE) '.[dev]'
	touch $@

$(KERNEL): | $(BASE)
	test -e $@ || $(HERE) . --no-deps
	rm -f $(VENV)/.kernel-*
	touch $@

checkup: $(BASE) $(KERNEL)
	multihead models --get minilm
	multihead checkup minilm --out checkup

check: $(DEV) $(KERNEL)
	ruff check .
	ruff format --check .
	pyright
	lint-imports

test: check
	multihead models --get minilm --get smollm2 --get rxnmapper --get dinov2 --get whisper-tiny
	python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow"

test-all: check
	multihead models --get minilm --get smollm2 --get rxnmapper --get dinov2 --get whisper-tiny
	python -m pytest -n $(WORKERS) --dist loadgroup

fuzz: $(DEV) $(KERNEL)
	HYPOTHESIS_PROFILE=fuzz python -m pytest -n $(WORKERS) --timeout 3000 tests/laws tests/native/test_fuzz.py

fmt: $(DEV)
	ruff check --fix-only .
	ruff format .

bench: $(DEV) $(KERNEL)
	python benchmarks/observe.py --lengths 128 512 2048

docs: $(DEV) $(KERNEL)
	sphinx-build -E -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
