# make lab        set everything up and open the lessons in JupyterLab
# make test       set everything up and run the tests (ALL=1: the slow ones too)
# make notebooks  rebuild the paired and the released notebooks from solutions/*/*.py
# make execute    run lessons on this machine and keep their outputs (LESSON=01_roofline: only that one)
# make lessons    run every solution and every release: full points, and none
# make bank       run every right, wrong, slow and cheating submission of the bank on this machine
# make bench      measure the reference kernels against their peers
# make book       build the site for readers: book/build/html/index.html
# make book-pdf   print it with Chromium: book/build/pdf, one file a lesson (LESSON=01_roofline: only that one)
# make newest     the tests with the newest torch and triton that pip finds; what fails is a warning and no error
# make grade      grade what lies in submitted/ (LESSON=01_roofline is needed)
# make env        only the environment in .venv, for `source .venv/bin/activate` and plain nbgrader commands

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: lab test notebooks execute lessons bank bench book book-pdf newest grade env tools
.DEFAULT_GOAL := lab

# Without PYTHON an environment is made in .venv. PYTHON=python3 takes a python that already has everything.
VENV := .venv
ifdef PYTHON
env:
tools:
else
PYTHON := $(CURDIR)/$(VENV)/bin/python
env: $(VENV)/complete
tools: $(VENV)/book
# nbgrader and Jupyter call other programs by name (alembic, jupyter-nbconvert): the environment's come first.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
endif
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
# Kernels of the environment win over kernels of the same name in the home folder.
export JUPYTER_PREFER_ENV_PATH := 1

LESSON ?=
WORKERS ?= 2

ifneq ($(shell uname -s),Linux)
NO_TRITON = @echo "Triton has no wheel for this system. Use WSL2, or the container: README.md, 'Without Linux'."; exit 1
endif

$(VENV)/complete: requirements.txt constraints.txt pyproject.toml
	$(NO_TRITON)
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; python3 here is $$(python3 --version)."; exit 1; }
	@python3 -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "python3 cannot make environments here; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt -c constraints.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# What only `make book` needs.
$(VENV)/book: $(VENV)/complete book/constraints.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation -e ".[book]" \
	  -c requirements.txt -c constraints.txt -c book/constraints.txt
	@touch $@

lab: env
	$(PYTHON) -m autograder lab

test: env
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup $(if $(ALL),,-m "not slow")

notebooks: env
	$(PYTHON) -m autograder notebooks

execute: env
	$(PYTHON) -m autograder execute $(LESSON)

lessons: env
	$(PYTHON) -m autograder lessons $(LESSON)

# The cheats run in bubblewrap, against the referee.
bank: env
	$(PYTHON) -m autograder bank
	$(PYTHON) -m autograder bank --cheats

bench: env
	$(PYTHON) -m benchmarks

# A warning stops it: a link that leads nowhere, a formula that cannot be shown.
book: env tools
	rm -rf book/build/html
	$(PYTHON) -m book.pages book/build/source
	$(PYTHON) -m sphinx -q -W --keep-going -j $(WORKERS) -d book/build/doctrees -c book book/build/source book/build/html
	@echo "Open book/build/html/index.html"

book-pdf: book
	$(PYTHON) -m book.printing book/build/html book/build/pdf $(LESSON)

# In an environment of its own. Gigabytes, since the newest torch may be a build for CUDA.
newest:
	python3 -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade torch triton
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check -e ".[grading]" \
	  pytest==9.1.1 pytest-xdist==3.8.0
	@$(VENV)-newest/bin/python -m pip list | grep -E "^(torch|triton) "
	@PATH="$(CURDIR)/$(VENV)-newest/bin:$$PATH" OMP_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest -n $(WORKERS) \
	  --dist loadgroup -q -m "not slow" tests/kernels tests/course_lib || echo "Warning: not all of this passes yet."

# A submission that cannot be graded keeps no other student's feedback and marks back.
grade: env
	@test -n "$(LESSON)" || { echo "Say which lesson: make grade LESSON=01_roofline"; exit 1; }
	nbgrader generate_assignment "$(LESSON)"
	@status=0; for step in "autograde $(LESSON)" "generate_feedback $(LESSON)" export; do \
	  echo "nbgrader $$step"; nbgrader $$step || status=$$?; done; exit $$status
