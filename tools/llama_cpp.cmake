# Read by CMake in llama.cpp's project, whose values of its own are FORCEd: the library of its programs is half of what
# the compiler has to do, and nothing here loads it.
set(LLAMA_BUILD_COMMON OFF)
