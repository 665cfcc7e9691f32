"""llama.cpp's source is packed without what its build never reads, and built for one architecture."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.gpu.build import BACKENDS, Build, CannotBuild, architecture, check_programs, detect, options
from tools.gpu.nvcc import check_nvcc, errors_of, nvcc_options
from tools.gpu.source import inside, kept, repack, unpack


@pytest.mark.parametrize(
    "path",
    [
        "CMakeLists.txt",
        "LICENSE",
        "cmake/common.cmake",
        "common/arg.cpp",
        "ggml/src/ggml-cuda/mmq.cu",
        "ggml/src/ggml-vulkan/CMakeLists.txt",
        "include/llama.h",
        "scripts/ui-assets.cmake",
        "src/llama.cpp",
        "tools/mtmd/clip.cpp",
        "tools/server/server.cpp",
        "tools/ui/CMakeLists.txt",
        "vendor/nlohmann/json.hpp",
    ],
)
def test_sources_of_libraries_and_server_are_packed(path: str) -> None:
    assert kept(path)


@pytest.mark.parametrize(
    "path",
    [
        "docs/ops/CUDA.csv",
        "media/matmul.png",
        "models/ggml-vocab-gemma-4.gguf",
        "tests/test-chat.cpp",
        "tools/mtmd/test-3.mp4",
        "tools/ui/src/app.html",
        "ggml/src/ggml-opencl/ggml-opencl.cpp",
        "scripts/hf.sh",
        "srcs/other.cpp",
    ],
)
def test_documents_media_models_and_tests_are_not_packed(path: str) -> None:
    assert not kept(path)


def test_only_members_of_llama_cpp_are_inside() -> None:
    assert inside("llama_cpp_python-0.3.36/vendor/llama.cpp/src/llama.cpp") == "src/llama.cpp"
    assert inside("llama_cpp_python-0.3.36/llama_cpp/llama.py") is None
    assert inside("llama_cpp_python-0.3.36/.git/modules/vendor/llama.cpp/index") is None


def distribution(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "binding.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"binding-1/vendor/llama.cpp/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_an_archive_unpacks_to_the_sources_alone(tmp_path: Path) -> None:
    # The names of CUDA's sources are so long that a tar file has them in a header of its own.
    long = f"ggml/src/ggml-cuda/template-instances/{'fattn-' * 20}.cu"
    files = {"src/llama.cpp": b"int main;", "docs/a.md": b"#", "CMakeLists.txt": b"project(a)", long: b"DECL;"}
    repack(distribution(tmp_path, files), tmp_path / "archive")
    place = unpack(tmp_path / "archive", tmp_path / "out")
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {"src/llama.cpp": b"int main;", "CMakeLists.txt": b"project(a)", long: b"DECL;"}


def test_an_archive_that_is_too_large_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has \d+ bytes, at most 10"):
        repack(distribution(tmp_path, {"src/llama.cpp": b"int main;"}), tmp_path / "archive", most=10)
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(("listing", "found"), [("9.0\n", "90"), ("8.9\n8.9\n", "89"), (" 12.0 \n\n", "120")])
def test_the_architecture_is_that_of_all_gpus(listing: str, found: str) -> None:
    assert architecture(listing) == found
    assert detect(lambda _: listing) == found


@pytest.mark.parametrize("listing", ["", "\n", "8.9\n9.0\n", "[N/A]\n"])
def test_without_one_architecture_it_has_to_be_named(listing: str) -> None:
    with pytest.raises(CannotBuild, match="--architecture"):
        architecture(listing)


def test_a_build_needs_no_network_and_only_one_for_cuda_has_its_options() -> None:
    assert "-DLLAMA_USE_PREBUILT_UI=OFF" in options("cuda")
    assert not any("CUDA" in option for option in options("cpu"))


@pytest.mark.skipif(sys.platform != "linux", reason="the linker has this option on Linux alone")
def test_programs_of_a_cuda_build_are_linked_where_the_linker_finds_neither_cublas_nor_a_driver(tmp_path: Path) -> None:
    def link(*arguments: str) -> int:
        return subprocess.run(["c++", *arguments], cwd=tmp_path, check=False, capture_output=True).returncode

    (tmp_path / "cublas.cpp").write_text("int product() { return 1; }")
    (tmp_path / "ggml.cpp").write_text("int product(); int decode() { return product(); }")
    (tmp_path / "server.cpp").write_text("int decode(); int main() { return decode(); }")
    shared = ("-shared", "-fPIC", "-o")
    assert link(*shared, "libcublas.so", "cublas.cpp", "-Wl,-soname,libcublas.so.13") == 0
    assert link(*shared, "libggml.so", "ggml.cpp", "libcublas.so") == 0
    flags = [each.partition("=")[2] for each in options("cuda") if each.startswith("-DCMAKE_EXE_LINKER_FLAGS=")]
    assert link("-o", "server", "server.cpp", "libggml.so", *flags) == 0
    assert link("-o", "server", "server.cpp", "libggml.so") != 0


def test_a_build_with_nvcc_is_for_one_architecture() -> None:
    compiler, architecture = nvcc_options("90")
    assert compiler.startswith("-DCMAKE_CUDA_COMPILER=")
    assert architecture == "-DCMAKE_CUDA_ARCHITECTURES=90"


def test_missing_programs_are_named() -> None:
    with pytest.raises(CannotBuild, match=r"needs nvcc, not found on the PATH or in /usr/local/cuda/bin: install"):
        check_programs("cuda", which={"cmake": "/usr/bin/cmake"}.get)
    with pytest.raises(CannotBuild, match="needs cmake and glslc, not found on the PATH: install"):
        check_programs("vulkan", which=lambda _: None)
    for backend in BACKENDS:
        check_programs(backend, which=lambda _: "/usr/bin/any")


NEW_GCC = """In file included from /usr/local/cuda/include/cuda_runtime.h:82,
                 from <command-line>:
/usr/local/cuda/include/crt/host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions later than 15 \
are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this version check
  137 | #error -- unsupported GNU version! gcc versions later than 15 are not supported!
"""
NO_CUBLAS = """/tmp/probe.cu:1:10: fatal error: cublas_v2.h: No such file or directory
    1 | #include <cublas_v2.h>
compilation terminated.
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            NEW_GCC,
            "(unsupported GNU version! gcc versions later than 15 are not supported): name an older C++ compiler",
        ),
        (NO_CUBLAS, "(cublas_v2.h: No such file or directory): install cuBLAS with its headers"),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'\n",
            "(Unsupported gpu architecture 'compute_120'): install a CUDA toolkit that has it, or name another one",
        ),
        ("exit code 127", "(exit code 127): mend the CUDA toolkit"),
    ],
)
def test_what_nvcc_lacks_is_one_reason_with_one_remedy(lines: str, message: str) -> None:
    with pytest.raises(CannotBuild) as raised:
        check_nvcc("120", errors=lambda _: lines)
    assert str(raised.value).startswith(f"nvcc cannot build for architecture 120 {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("architecture", "option"), [("90", "sm_90"), ("90a-real", "sm_90a"), ("80;90", "sm_80"), ("native", "native")]
)
def test_nvcc_preprocesses_a_file_with_cublas_for_the_architecture(architecture: str, option: str) -> None:
    given: list[str] = []

    def succeed(command: Sequence[str]) -> str:
        given.extend([*command, Path(command[3]).read_text()])
        return ""

    check_nvcc(architecture, errors=succeed)
    assert given[1:3] == [f"-arch={option}", "-E"]
    assert "cublas" in given[-1]


def test_only_a_program_that_fails_has_errors() -> None:
    assert errors_of(["sh", "-c", "echo warning >&2"]) == ""
    assert errors_of(["sh", "-c", "echo fatal >&2; exit 1"]) == "fatal\n"
    assert errors_of(["false"]) == "exit code 1"


def test_both_libraries_of_the_binding_come_from_the_build(tmp_path: Path) -> None:
    assert Build(tmp_path).environment == {"LLAMA_CPP_LIB_PATH": str(tmp_path), "MTMD_CPP_LIB": str(tmp_path)}


@pytest.mark.parametrize(("before", "after"), [(None, "/opt/cuda/lib64"), ("/a:/b", "/opt/cuda/lib64:/a:/b")])
def test_a_build_with_cuda_finds_the_toolkits_libraries_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    cache = "CUDA_cublas_LIBRARY:FILEPATH=/opt/cuda/lib64/libcublas.so\nCUDA_cudart_LIBRARY:FILEPATH=/b/libcudart.so\n"
    (tmp_path / "CMakeCache.txt").write_text(f"# This is the CMakeCache file.\n{cache}")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if before is not None:
        monkeypatch.setenv("LD_LIBRARY_PATH", before)
    assert Build(tmp_path / "bin").environment["LD_LIBRARY_PATH"] == after
    (tmp_path / "CMakeCache.txt").write_text("CUDA_cublas_LIBRARY:FILEPATH=CUDA_cublas_LIBRARY-NOTFOUND\n")
    assert "LD_LIBRARY_PATH" not in Build(tmp_path / "bin").environment
