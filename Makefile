# Everything a fresh machine needs: `make demo` shows it working, `make test` proves it. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
# The compiler that CMake takes for llama.cpp.
ifeq ($(origin CXX),default)
CXX := c++
endif
# Its features for this CPU decide the flags (docs/decisions/0019): GCC removes the set-up of AMX's tiles as dead stores,
# so the first decode dies; with AVX512-FP16 the values of heads of 64 are summed one by one.
NATIVE := $(shell $(CXX) -march=native -dM -E -x c++ /dev/null 2>/dev/null)
AMX_FLAGS := $(if $(findstring __clang__,$(NATIVE)),,$(if $(findstring __AMX_TILE__,$(NATIVE)),-fno-tree-dse -fno-dse))
FP16_FLAG := $(if $(findstring __AVX512FP16__,$(NATIVE)),-mno-avx512fp16)
PIP_INSTALL := CFLAGS="$(CFLAGS) $(FP16_FLAG)" CXXFLAGS="$(CXXFLAGS) $(AMX_FLAGS) $(FP16_FLAG)" \
	CMAKE_ARGS="$(CMAKE_ARGS) -DCMAKE_PROJECT_llama.cpp_INCLUDE='$(CURDIR)/tools/llama_cpp.cmake'" \
	$(BIN)/python -m pip install --quiet

# Decodes a little: its exit code is above 128 where llama.cpp crashes on this CPU.
TRIAL := $(BIN)/python -m car_engine.trial daemon/car_base/guide/guide.gguf

# Two processes for the tests. Those of a file share one, because they share daemons; files with the longest tests
# come early in the alphabet's order.
TWO := -n 2 --dist loadfile --no-loadscope-reorder

# Tests without llama.cpp and without a daemon.
FAST := tests/test_*.py tests/protocol tests/base tests/daemon tests/engine tests/placer tests/tools --ignore tests/engine/llama --hypothesis-profile quick

.PHONY: help install clients browser llm-card typescript rebuild demo real-model templates gpu ray dev test fast cover check fmt shape trace docs site pictures build pins sbom release bench house bench-full clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The bytecode, because Python may be told to leave none (PYTHONDONTWRITEBYTECODE): each start would then compile.
install: .venv/installed ## .venv with all of it; builds llama.cpp once
	@$(BIN)/python -m compileall -q protocol client daemon

# llama-cpp-python is built from source here, which takes some minutes the first time; pip keeps the wheel.
.venv/installed: .venv/engineless
	$(PIP_INSTALL) --editable ".[daemon,terminal,hub,images,http]" --group test --group lint --group door
	$(TRIAL) || { test $$? -gt 128 && $(MAKE) rebuild; }
	touch $@

# All but llama.cpp: seconds, and no compiler.
.venv/engineless: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "card needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[engineless,terminal,hub]" --group test --group lint
	touch $@

# For a wheel in pip's cache that crashes or crawls here: it was built without those flags, or for another CPU.
rebuild: ## build llama.cpp again
	-$(BIN)/python -m pip cache remove --quiet llama_cpp_python
	$(PIP_INSTALL) --force-reinstall --no-deps --no-binary llama-cpp-python \
		"$$($(BIN)/python -m pip freeze | grep -i '^llama.cpp.python==')"
	-$(TRIAL)

# MODEL=real answers a QUESTION of your own with SmolLM2 in place of the guide.
demo: install $(if $(filter real,$(MODEL)),real-model) ## the daemon on its built-in model: one answer
	$(BIN)/python -m tools.demo $(if $(MODEL),--model $(MODEL)) $(if $(QUESTION),--question "$(QUESTION)")

browser: install ## what the tests of the door's page drive Debian's chromium with
	$(BIN)/python -m pip install --quiet --group browser

ray: install ## install Ray (240 MB) and run the tests of engines on a real cluster of this machine
	$(BIN)/python -m pip install --quiet --editable ".[cluster]"
	$(BIN)/python -m pytest tests/e2e/test_ray.py

templates: install ## fetch llama.cpp's chat templates (37 MB, of which 1 is kept) for the tests of tool calls
	$(BIN)/python -m tools.chat_templates

# In an environment of their own, because two of them need an older client of OpenAI than card's tests.
clients: .venv/clients/installed ## the libraries that the HTTP door is tested with (a minute or more)

.venv/clients/installed: pyproject.toml
	$(PYTHON) -m venv .venv/clients
	.venv/clients/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/clients/bin/python -m pip install --quiet --group clients
	touch $@

# In an environment of its own, because it needs a newer client of OpenAI than the libraries above.
llm-card: .venv/llm/installed ## the command line llm with the plugin of client/llm_card, for its tests

.venv/llm/installed: pyproject.toml client/llm_card/pyproject.toml client/llm_card/llm_card.py
	$(PYTHON) -m venv .venv/llm
	.venv/llm/bin/python -m pip install --quiet --editable . --editable client/llm_card
	touch $@

typescript: ## the TypeScript client: what builds it, and its build (needs Node 20)
	cd client/typescript && npm install --no-audit --no-fund && npm run build

real-model: .venv/engineless ## fetch SmolLM2 (98 MB) into the user's cache; MODEL=coder fetches Qwen2.5-Coder-0.5B (491 MB)
	$(BIN)/python -m tools.real_model $(filter coder gemma3,$(MODEL))

# The second run imports the files of its tests alone: all of the suite's take 13 s.
test: install ## the whole suite
	$(BIN)/python -m pytest $(TWO) -m "not alone"
	$(BIN)/python -m pytest -m alone $$(grep -rl --include '*.py' 'mark\.alone' tests)

fast: .venv/engineless ## tests without llama.cpp and without a daemon, in about a minute
	$(BIN)/python -m pytest -q $(TWO) -m "not slow and not alone" $(FAST)

cover: install ## the fast tests with coverage; the report is htmlcov/index.html
	$(BIN)/python -m pip install --quiet --group cover
	$(BIN)/python -m pytest -q -m "not slow" --cov --cov-report html --cov-report term:skip-covered

# ARGS: `--backend cpu`, `--architecture 90`, ... ; the archive of a machine with a network serves others too.
gpu: install ## llama.cpp built for this machine's GPU, and card checked and measured on it
	CFLAGS="$(CFLAGS) $(FP16_FLAG)" CXXFLAGS="$(CXXFLAGS) $(AMX_FLAGS) $(FP16_FLAG)" \
		$(BIN)/python -m tools.gpu $(ARGS)

dev: .venv/engineless ## the real daemon with scripted engines, in the foreground: no llama.cpp
	$(BIN)/python -m tools.scripted

check: install ## lint and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fmt: install ## format, and apply the linter's fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

shape: .venv/engineless ## figures about the code's shape: a mirror, no gate
	$(BIN)/python -m tools.shape

trace: .venv/engineless ## the calls of one token; renews docs/explanation/follow-one-token.md
	$(BIN)/python -m tools.trace

docs: install ## the tables of the pages, from the code; the blocking client; TypeScript types
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.blocking_client
	$(BIN)/python -m tools.typescript_types

# In an environment of its own: nothing of card needs it.
.venv/site/installed: pyproject.toml
	$(PYTHON) -m venv .venv/site
	.venv/site/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/site/bin/python -m pip install --quiet --group site
	touch $@

site: .venv/engineless .venv/site/installed ## the pages of docs/ with a search, in build/site; a bad link is an error
	NO_MKDOCS_2_WARNING=1 .venv/site/bin/mkdocs build --quiet --strict

pictures: install browser ## docs/pictures, from a daemon that works; needs chromium
	$(BIN)/python -m tools.pictures

build: install ## a wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# Tools of a release, in an environment of their own: their dependencies are not card's.
.venv/release/installed: pyproject.toml
	$(PYTHON) -m venv .venv/release
	.venv/release/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/release/bin/python -m pip install --quiet --group release
	touch $@

# Every version with the hashes of all of its files; without the address of an index. The last lines of pip-compile's
# file are about the project itself, which its extras name.
pins: .venv/release/installed ## requirements/daemon.txt: pinned versions with hashes
	mkdir -p build requirements
	.venv/release/bin/pip-compile --quiet --upgrade --generate-hashes --unsafe-package card-daemon --strip-extras \
		--no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--extra daemon --extra terminal --extra hub --extra images --output-file build/daemon.txt pyproject.toml
	sed -e '/^# WARNING/,$$d' -e '/^$$/d' build/daemon.txt > requirements/daemon.txt

sbom: .venv/release/installed ## dist/card.cdx.json: a CycloneDX list of the pinned dependencies, beside the wheel
	mkdir -p dist
	.venv/release/bin/cyclonedx-py requirements --output-reproducible --output-format JSON \
		--pyproject pyproject.toml --output-file dist/card.cdx.json requirements/daemon.txt

release: install .venv/release/installed ## wheel, sdist and SBOM in dist/, tried in empty environments
	rm -rf dist
	.venv/release/bin/python -m build --quiet --outdir dist .
	$(MAKE) sbom
	$(BIN)/python -m tools.try_release dist

# About nine minutes. LLAMA_SERVER=PATH of llama.cpp's llama-server lets it take part; without it card's figures stand alone.
bench: install real-model ## card beside llama-server: one table, a verdict a line
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.verdicts

# A round takes 6 minutes a server; ARGS: `--rounds 5`, ...
house: install real-model ## what each app keeps when all are there, beside llama-server as in `bench`; README's picture
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.house --rounds 1 --png docs/pictures/house.png $(ARGS)

# Everything, more than an hour with llama-server.
bench-full: install ## all benchmarks
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.verdicts --full --turns 5
	$(BIN)/python -m benchmarks.overhead --full
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.confinement
	$(BIN)/python -m benchmarks.admission
	$(BIN)/python -m benchmarks.decisions
	$(BIN)/python -m benchmarks.day
	$(BIN)/python -m benchmarks.long_prompt
	$(BIN)/python -m benchmarks.long_prompt --tokens 4000
	$(BIN)/python -m benchmarks.prefixes
	$(BIN)/python -m benchmarks.conversations
	$(BIN)/python -m benchmarks.door
	$(BIN)/python -m benchmarks.door --paced
	$(BIN)/python -m benchmarks.memory --full

clean: ## remove build outputs
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/out
