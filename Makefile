# make demo   set up, train five sites with few CT slices each in FLARE's simulator, write runs/demo
# make test   set up and run the tests, side by side
# make slow   set up and run the tests that take minutes
# make lowest the tests with the lowest versions of other packages that pyproject.toml takes
# make wheel  dist/: the wheel and its bill of materials
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/installed
RELEASE := $(VENV)/release
LOWEST := $(VENV)/lowest
WORKERS ?= 2
PYTEST := $(VENV)/bin/python -m pytest --numprocesses $(WORKERS)

.PHONY: demo test slow lowest lint jobs wheel hashes clean

$(STAMP): pyproject.toml constraints.txt custom/medpfl/core/version.py
	$(PYTHON) -c 'import sys; assert (3, 10) <= sys.version_info < (3, 14), "medpfl needs Python 3.10 to 3.13; try: make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(VENV)/bin/medpfl run --sites 5 --train-fraction 0.25 --partition equal-dirichlet:0.5 --rounds 20 --local-epochs 3 \
		--out runs/demo --overwrite

test: $(STAMP)
	$(PYTEST)

slow: $(STAMP)
	$(PYTEST) -m slow

lint: $(STAMP)
	$(VENV)/bin/ruff check custom tests datasets examples benchmarks requirements
	$(VENV)/bin/ruff format --check custom tests datasets examples benchmarks requirements

jobs: $(STAMP)
	$(VENV)/bin/python jobs/make_jobs.py

# Tools of their own environment: what is delivered is not what builds it.
$(RELEASE)/installed: constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt build cyclonedx-bom uv
	touch $(RELEASE)/installed

lowest: $(RELEASE)/installed
	$(PYTHON) -m venv --clear $(LOWEST)
	$(RELEASE)/bin/uv pip compile --quiet --no-header --resolution lowest-direct --python $(LOWEST)/bin/python \
		--output-file $(LOWEST)/versions.txt pyproject.toml
	$(RELEASE)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/versions.txt \
		--editable '.[dev]'
	$(LOWEST)/bin/python -m pytest --numprocesses $(WORKERS)

wheel: $(RELEASE)/installed
	rm -rf build dist
	$(RELEASE)/bin/python -m build --wheel
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(RELEASE)/bin/python requirements/make_sbom.py dist/medpfl-*.whl

hashes: $(RELEASE)/installed
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(RELEASE)/bin/python requirements/make_hashes.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache
