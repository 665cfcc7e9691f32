"""The only importer of llama_cpp: model, context, samplers, vocabulary, projector."""

import sys
from importlib.util import find_spec, module_from_spec

# The package's own code imports the binding's high-level API and jinja2, which nothing here uses: 0.17 s of processor
# time and 6 MB at each start of an engine. Without that code its modules are found all the same.
if "llama_cpp" not in sys.modules and (_package := find_spec("llama_cpp")) and _package.submodule_search_locations:
    sys.modules["llama_cpp"] = module_from_spec(_package)
