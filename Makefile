# Everything a fresh machine needs: `make demo` shows it working, `make test` proves it.
PYTHON ?= python3
BIN := .venv/bin
# The compiler that CMake takes for llama.cpp.
ifeq ($(origin CXX),default)
CXX := c++
endif
# What it knows of this CPU decides the flags (docs/decisions/0019): GCC takes the setting up of AMX's tiles for dead stores,
# so the first decode dies; with AVX512-FP16 the values of heads of 64 are summed one by one.
NATIVE := $(shell $(CXX) -march=native -dM -E -x c++ /dev/null 2>/dev/null)
AMX_FLAGS := $(if $(findstring __clang__,$(NATIVE)),,$(if $(findstring __AMX_TILE__,$(NATIVE)),-fno-tree-dse -fno-dse))
FP16_FLAG := $(if $(findstring __AVX512FP16__,$(NATIVE)),-mno-avx512fp16)
PIP_INSTALL := CFLAGS="$(CFLAGS) $(FP16_FLAG)" CXXFLAGS="$(CXXFLAGS) $(AMX_FLAGS) $(FP16_FLAG)" \
	$(BIN)/python -m pip install --quiet

.PHONY: install rebuild demo test check fmt docs pictures build bench bench-full clean

install: .venv/installed

# llama-cpp-python is built from source here, which takes some minutes the first time; pip keeps the wheel.
.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "card needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PIP_INSTALL) --editable ".[daemon,terminal,hub]" --group test --group lint
	$(BIN)/python -m tools.try_llama || { test $$? -gt 128 && $(MAKE) rebuild; }
	touch $@

# For a wheel in pip's cache that crashes or crawls here: it was built without those flags, or for another CPU.
rebuild:
	-$(BIN)/python -m pip cache remove --quiet llama_cpp_python
	$(PIP_INSTALL) --force-reinstall --no-deps --no-binary llama-cpp-python \
		"$$($(BIN)/python -m pip freeze | grep -i '^llama.cpp.python==')"
	-$(BIN)/python -m tools.try_llama

demo: install
	$(BIN)/python tools/demo.py

test: install
	$(BIN)/python -m pytest -m "not slow"
	$(BIN)/python -m pytest -m slow

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fmt: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The tables of docs/protocol.md, from the definitions.
docs: install
	$(BIN)/python -m tools.protocol_docs

# docs/pictures, from a daemon that works.
pictures: install
	$(BIN)/python -m tools.pictures

build: install
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# Some minutes. LLAMA_SERVER=PATH of llama.cpp's llama-server lets it take part.
bench: install
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.throughput --turns 2
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.calls
	$(BIN)/python -m benchmarks.start

# Everything, more than an hour with other servers. LLAMA_CPP_PYTHON=PATH of a Python with
# llama-cpp-python[server] lets the binding's own server take part.
bench-full: install
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.throughput --full
	$(BIN)/python -m benchmarks.overhead --full
	$(BIN)/python -m benchmarks.calls
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.admission
	$(BIN)/python -m benchmarks.long_prompt
	$(BIN)/python -m benchmarks.long_prompt --tokens 4000
	$(BIN)/python -m benchmarks.prefixes
	$(BIN)/python -m benchmarks.forms
	$(BIN)/python -m benchmarks.texts
	$(BIN)/python -m benchmarks.guesses
	$(BIN)/python -m benchmarks.neighbours
	$(BIN)/python -m benchmarks.idle
	$(BIN)/python -m benchmarks.memory --full

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/out
