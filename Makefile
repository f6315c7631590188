# `make` alone lists the targets. CI calls these targets and nothing else.
VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
TORCH_VENV := .venv-torch
# of files in packages: the same source gives the same bytes
SOURCE_DATE_EPOCH ?= 1580601600
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/torchwise-editors

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types check test-torch test-packages test-install deps-matrix budget pages bench bundle vsix vsix-all e2e accuracy field-report docs build clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

setup: $(VENV)/.installed  ## create .venv with the product and the development tools

demo: setup  ## the main job: check and estimate the shipped example scripts
	$(BIN)/torchwise check examples --fail-on error || test $$? -eq 1
	$(BIN)/torchwise estimate examples/train_gpt.py --gpu rtx-4090 --gpu a100-80gb

test: setup  ## run the tests (no torch needed)
	$(PYTHON) -m pytest -n auto --dist worksteal

lint: setup  ## formatting, lint, layer contract, drift of generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(PYTHON) -m torchwise_analysis.rules.pages --check
	$(PYTHON) -m torchwise_server.cli.pages --check

format: setup  ## format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup node_modules/.package-lock.json  ## mypy strict, pyright strict, tsc
	$(BIN)/mypy
	$(BIN)/pyright
	npm run --silent check

check: lint types test  ## everything that needs neither torch nor an editor

$(TORCH_VENV)/.installed: pyproject.toml
	python3 -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check lightning transformers accelerate peft
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

test-torch: $(TORCH_VENV)/.installed  ## compare with a real PyTorch (CPU), in an environment of its own
	$(TORCH_VENV)/bin/python -m pytest -m torch -n auto --dist worksteal

test-packages: setup  ## the wheel in fresh environments, pre-commit, rules from outside (needs a package index)
	TORCHWISE_TEST_PACKAGES=1 $(PYTHON) -m pytest tests/packages

test-install: setup  ## the part of test-packages that CI runs: the wheel alone, oldest and newest libraries, pre-commit
	TORCHWISE_TEST_PACKAGES=1 $(PYTHON) -m pytest tests/packages/test_fresh.py -k "alone or pre_commit"

deps-matrix:  ## oldest and newest dependencies in environments of their own (needs a package index)
	scripts/deps_matrix.sh

budget: setup  ## what files of a megabyte cost that are made to exhaust their reader
	$(PYTHON) benchmarks/budget.py

pages: setup  ## write docs/rules from the rule files, docs/cli.md from the commands, the picture of a step
	$(PYTHON) -m torchwise_analysis.rules.pages
	$(PYTHON) -m torchwise_server.cli.pages
	$(PYTHON) scripts/step_picture.py

bench: setup  ## the cost of an edit against a full parse
	$(PYTHON) benchmarks/edit_cost.py

node_modules/.package-lock.json: package-lock.json
	npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

bundle: setup  ## the server with its libraries, for this platform: vscode-extension/bundled/libs
	$(PYTHON) scripts/bundle_server.py

vsix: bundle node_modules/.package-lock.json  ## the VS Code extension with its server: vscode-extension/torchwise.vsix
	TZ=UTC LC_ALL=C SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) npm run --silent package --workspace vscode-extension -- \
		--target $$($(PYTHON) scripts/bundle_server.py --this-platform)
	@ls -lh vscode-extension/torchwise.vsix

vsix-all: setup node_modules/.package-lock.json  ## the same for each platform of VS Code: vscode-extension/torchwise-*.vsix
	for target in $$($(PYTHON) scripts/bundle_server.py --platforms); do \
		$(PYTHON) scripts/bundle_server.py --target $$target && \
		TZ=UTC LC_ALL=C SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) npm run --silent package --workspace vscode-extension -- \
			--target $$target --out torchwise-$$target.vsix || exit 1; \
	done
	@ls -lh vscode-extension/torchwise-*.vsix

e2e: setup node_modules/.package-lock.json  ## VS Code, Neovim and Emacs as a person uses them (installs them into CACHE)
	CACHE=$(CACHE) tests/e2e/run.sh

accuracy: setup  ## described jobs against published peaks; writes docs/accuracy.md and its picture
	$(PYTHON) benchmarks/accuracy.py --report docs/accuracy.md

field-report: setup  ## check CHECKOUTS (a folder of repositories) again; writes docs/field-report.md
	$(PYTHON) benchmarks/field_report.py $(CHECKOUTS) --report docs/field-report.md

$(VENV)/.docs-installed: pyproject.toml | setup
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

docs: $(VENV)/.docs-installed  ## the documentation site, links checked: build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

build: setup  ## wheel and sdist in dist/
	$(PYTHON) -m build

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(TORCH_VENV) dist build node_modules vscode-extension/dist vscode-extension/bundled vscode-extension/*.vsix
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
