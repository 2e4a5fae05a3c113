# Two commands matter: `make course` runs the course, `make test` checks it. All set themselves up first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Compiled files are kept, whatever the environment says: each test process would compile all tests anew, for seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: course test proof fuzz variants setup lock wheels notebooks companions student figures ledger web clean
.DEFAULT_GOAL := course

# Run the core scripts of the course in their quick form; ends with many users streaming and the ledger of claims.
# `lab course --all` runs those of all levels.
course: setup
	@$(BIN)/lab course

# Style, the direction of imports, and the tests. Needs no GPU, and no network once set up; all seeds are fixed.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadfile -m "not proof"

# The tests that take long, or a browser: pieces clicked in Chromium, every notebook run, long explorations.
proof: setup
	$(BIN)/python -m pytest -n auto --dist loadfile -m proof

# After a change of a kernel: over 700 variants as machine code for six cards. None may spill registers.
variants: setup
	ALL_VARIANTS=1 $(BIN)/python -m pytest -n auto tests/phase5_real_gpu/test_kernel_variants.py

# For developers: attackers and all other property-based tests on fresh examples, round after round, until time is up.
# MINUTES is a whole number.
MINUTES ?= 5
SEED ?= $(shell date +%s)
FUZZ = $(BIN)/python -m pytest -q -x -n auto --maxschedchunk=1 -m hypothesis --hypothesis-profile=fuzz tests/fuzzing tests
fuzz: setup
	@seed=$(SEED); until=$$(($$(date +%s) + 60 * $(MINUTES))); while [ $$(date +%s) -lt $$until ]; do \
		echo "$(FUZZ) --hypothesis-seed=$$seed"; \
		FUZZ_UNTIL=$$until $(FUZZ) --hypothesis-seed=$$seed || exit 1; seed=$$((seed + 1)); done

# Write the exercise notebooks and their solutions from the sources in exercises/.
notebooks: setup
	$(BIN)/python -m exercises.publishing.build_notebooks

# Run the notebooks beside the phases and keep their outputs. They belong to the machine that runs them.
companions: setup
	$(BIN)/python -m exercises.publishing.build_notebooks --execute

# Draw again the figures that the READMEs show. They belong to the machine that draws them.
figures: setup
	$(BIN)/lab run 1 --figures phase1_tokens_embeddings/figures
	$(BIN)/lab run 2 --figures phase2_attention_kvcache/figures
	$(BIN)/lab run 3 --figures phase3_paged_attention/figures
	$(BIN)/lab run 4 --figures phase4_scheduler/figures
	$(BIN)/lab run 5 --figures phase5_real_gpu/figures

# Make a run of all scripts on this machine, while it is quiet, the reference run of the ledger.
ledger: setup
	$(BIN)/lab run
	$(BIN)/python -m labkit.claims

# Build the course as a web page: static files in web/build/site. `lab web` shows it.
web: setup
	$(BIN)/python -m web.build

setup: $(VENV)/installed

$(VENV)/installed: requirements.txt requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "Python 3.11 to 3.14 is needed: make PYTHON=python3.12 ...")'
	@echo "Installing into $(VENV): a few minutes, once. The largest package, torch, comes last."
	@$(PYTHON) -m venv $(VENV)
	@if [ -d wheels ]; then $(PIP) install --no-index --find-links wheels -r requirements.txt; else \
		grep -E '^(torch|triton)=' requirements.txt > $(VENV)/torch.txt && \
		$(PIP) install --no-deps --require-hashes -r requirements.lock && \
		$(PIP) install -r $(VENV)/torch.txt && $(PIP) install --quiet -r requirements.txt; fi
	-@$(BIN)/python phase2_attention_kvcache/tell_story.py --device cpu
	@echo "Compiling the CPU kernels: some 20 seconds, once."
	@$(BIN)/python -m phase4_scheduler.cpu.compile_kernels
	@touch $@

# For a room without network: all that the course needs, in wheels/. Where that folder is, `setup` takes everything from it. The
# files suit this kind of computer and this Python.
wheels: setup
	grep -v '^-e' requirements.txt > $(VENV)/packages.txt
	$(PIP) wheel --wheel-dir wheels --no-deps --require-hashes -r requirements.lock
	$(PIP) wheel --wheel-dir wheels --find-links wheels -r $(VENV)/packages.txt 'setuptools>=77'
	@du -sh wheels

# For a teacher: the course without the solutions, in a new FOLDER.
student: setup
	$(BIN)/python -m exercises.publishing.student_edition $(FOLDER)

# For developers: work out requirements.lock anew, all packages with the hashes of their files. Without torch and
# triton: which of their many files is right depends on the machine.
lock: setup
	$(PIP) install uv
	printf 'torch; python_version < "3"\ntriton; python_version < "3"\n' > $(VENV)/without-torch.txt
	printf 'sympy\nnetworkx\nsetuptools\n' | $(BIN)/uv pip compile -q requirements.txt - -o requirements.lock \
		--override $(VENV)/without-torch.txt --universal --python-version 3.11 --generate-hashes \
		--no-emit-package inference-lab --no-annotate --custom-compile-command "make lock"

# outputs/ stays: your progress and your guesses are in it.
clean:
	rm -rf $(VENV)
