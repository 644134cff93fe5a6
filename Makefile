# The two commands of the README. Each alone does all its set-up: Python packages in .venv, and what Debian has beside them.
PYTHON ?= python3
READY := .venv/ready
TOOLS := PATH="$(CURDIR)/.venv/bin:$$PATH"

.PHONY: demo test

demo: $(READY)
	.venv/bin/python examples/demo.py

test: $(READY)
	scripts/system-packages
	$(TOOLS) python scripts/lanes.py

# Debian's Python makes environments with pip only where python3-venv is installed: without, its own pip installs another.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv >/dev/null || $(PYTHON) -m venv --clear --without-pip .venv
	test -e .venv/bin/pip || $(PYTHON) -m pip --python .venv/bin/python install --quiet pip
	.venv/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group check --group docs --group test
	touch $@
