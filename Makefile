# The set-up needs Python 3.11+ and make; everything else comes from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick campaign lint lowest clean

demo: .venv/ready
	$(BIN)/biprune demo --force

test: .venv/ready
	$(BIN)/pytest -n auto --dist worksteal

# What tells most within a minute, without commands, browsers and killed processes.
QUICK := core models files methods/test_bip.py methods/test_bip_plus.py methods/test_gradual.py \
	methods/test_magnitude.py pruning/test_attach.py training/test_training.py test_layering.py
quick: .venv/ready
	$(BIN)/pytest -n auto --dist worksteal $(addprefix tests/,$(QUICK))

# Damaged files, kills, full disks and the like, for so long: the figures of docs/reliability.md.
MINUTES ?= 60
campaign: .venv/ready
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m faults.campaign --minutes $(MINUTES) \
		--json docs/results/reliability.json --page docs/reliability.md

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The tests with every dependency at the lower bound of pyproject.toml. torch alone stays as in
# constraints.txt, for old builds of it bring gigabytes of CUDA: `make lowest TORCH=2.6.0`.
TORCH ?= $(patsubst torch==%,%,$(shell grep '^torch==' constraints.txt))
lowest: .venv-lowest/torch-$(TORCH)
	.venv-lowest/bin/pytest -n auto --dist worksteal tests

.venv-lowest/torch-$(TORCH): pyproject.toml benchmarks/lower_bounds.py
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python benchmarks/lower_bounds.py torch==$(TORCH) > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-lowest/constraints.txt -e '.[dev]'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest build
