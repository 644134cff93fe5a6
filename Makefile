# The two commands of the README. Each alone does all its set-up, in .venv.
PYTHON ?= python3
READY := .venv/ready

.PHONY: demo test

demo: $(READY)
	.venv/bin/python examples/demo.py

test: $(READY)
	PATH="$(CURDIR)/.venv/bin:$$PATH" scripts/check
	PATH="$(CURDIR)/.venv/bin:$$PATH" scripts/test

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group check --group test
	touch $@
