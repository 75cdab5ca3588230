# What a developer runs; `make check` before every commit. Needs `pip install -e ".[dev]"`.
PYTHON ?= .venv/bin/python

.PHONY: check format format-check lint types test slow

check: format-check lint types test

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

format-check:
	$(PYTHON) -m ruff format --check .

lint:
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

slow:
	$(PYTHON) -m pytest -m slow
