# CMake reads this file when llama.cpp's project begins. llama-cpp-python forces the option into CMake's cache; a variable
# of the same name wins. It builds a library for llama.cpp's programs: about half of the compiling, and nothing loads it.
set(LLAMA_BUILD_COMMON OFF)
