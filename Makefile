# make demo   set everything up, run a small real study, write its report
# make test   set everything up, run all tests with line coverage
# make check  lint, format check, types, import contracts, workflows
# make docs   build the documentation site in build/site
# make paper  build the four-page report in build/paper from results/
# make dist   build the source distribution and the wheel in dist/, and check them
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test check format docs paper dist clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

setup: $(VENV)/ready

demo: setup
	@echo "The demo trains 42 small models: about 4 minutes on two idle cores, less on more."
	$(BIN)/whichlayers run demo --folder whichlayers-demo
	$(BIN)/whichlayers report whichlayers-demo

test: setup
	PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000, then open http://127.0.0.1:8000"

paper: setup
	$(BIN)/python paper/build.py

dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .coverage*
