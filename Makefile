# The set-up needs Python 3.11+ and make; everything else comes from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/ready
	$(BIN)/biprune demo --force

test: .venv/ready
	$(BIN)/pytest -n auto --dist worksteal

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,onnx]'
	touch $@

clean:
	rm -rf .venv build
