# make demo   set up, train FedAP in FLARE's simulator on real CT slices, write runs/demo
# make test   set up and run the tests
# make slow   set up and run the tests that take minutes
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/installed

.PHONY: demo test slow lint jobs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 10) <= sys.version_info < (3, 13), "medpfl needs Python 3.10 to 3.12; try: make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(VENV)/bin/medpfl run fedap --sites 5 --rounds 10 --out runs/demo --overwrite

test: $(STAMP)
	$(VENV)/bin/python -m pytest

slow: $(STAMP)
	$(VENV)/bin/python -m pytest -m slow

lint: $(STAMP)
	$(VENV)/bin/ruff check custom tests datasets examples benchmarks
	$(VENV)/bin/ruff format --check custom tests datasets examples benchmarks

jobs: $(STAMP)
	$(VENV)/bin/python jobs/make_jobs.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache
