"""What is said of a llama.cpp that leaves a part of the machine unused."""

from pathlib import Path

import pytest

from car_daemon.engines.binding_check import build_it, machine_advice, slow_build, start_advice, unused_gpu

NATIVE = "0.3.36 CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | AVX512 = 1 | OPENMP = 1 | "
GENERIC = "0.3.36 CPU : SSE3 = 1 | SSSE3 = 1 | OPENMP = 1 | "
CUDA = f"0.3.36 CUDA : ARCHS = 890 | USE_GRAPHS = 1 | {NATIVE}"
X86 = "processor\t: 0\nflags\t\t: fpu sse3 avx f16c fma avx2 avx512f\nbugs\t\t: none\n"
OLD_X86 = "processor\t: 0\nflags\t\t: fpu sse3 avx\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\n"


def driver(version: str, kind: str = "x86_64 Kernel Module") -> str:
    return f"NVRM version: NVIDIA UNIX {kind}  {version}  Thu Feb 22 01:44:30 UTC 2024\nGCC version:  gcc 12.2.0\n"


@pytest.mark.parametrize(
    ("description", "cpuinfo", "missing"),
    [
        (NATIVE, X86, None),
        (GENERIC, X86, "AVX, AVX2, FMA, F16C"),
        (GENERIC, OLD_X86, "AVX"),
        (GENERIC.replace("OPENMP", "AVX"), X86, "AVX2, FMA, F16C"),
        (NATIVE.replace("AVX2 = 1", "AVX2 = 0"), X86, "AVX2"),
        (GENERIC, ARM, None),
        (GENERIC, "", None),
    ],
)
def test_a_build_without_vector_instructions_that_the_cpu_has_is_slow(
    description: str, cpuinfo: str, missing: str | None
) -> None:
    advice = slow_build(description, cpuinfo)
    if missing is None:
        assert advice is None
    else:
        assert advice is not None
        assert advice.startswith(f"this llama.cpp was built without {missing}, which this CPU has: ")
        assert "--no-binary llama-cpp-python" in advice


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("530.30.02", "cu121"),
        ("535.54.03", "cu122"),
        ("535.183.01", "cu122"),
        ("545.23.06", "cu123"),
        ("550.54.14", "cu124"),
        ("580.65.06", "cu124"),
    ],
)
@pytest.mark.parametrize("kind", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_the_wheel_is_the_newest_that_the_driver_runs(version: str, tag: str, kind: str) -> None:
    advice = unused_gpu(NATIVE, driver(version, kind))
    assert advice is not None
    assert f"prebuilt wheel {tag}" in advice
    assert f"NVIDIA driver {'.'.join(version.split('.')[:2])}:" in advice


def test_a_driver_older_than_every_wheel_is_to_be_updated() -> None:
    advice = unused_gpu(NATIVE, driver("525.60.13"))
    assert advice is not None
    assert "525.60" in advice
    assert "530.30 or newer" in advice


@pytest.mark.parametrize(("description", "version"), [(CUDA, driver("550.54.14")), (NATIVE, ""), (NATIVE, "nonsense")])
def test_nothing_is_said_of_a_gpu_in_use_or_absent(description: str, version: str) -> None:
    assert unused_gpu(description, version) is None


def test_a_machine_without_those_files_gets_no_advice(tmp_path: Path) -> None:
    assert machine_advice(GENERIC, tmp_path / "none", tmp_path / "none") == []
    (tmp_path / "cpuinfo").write_text(X86)
    (tmp_path / "version").write_text(driver("550.54.14"))
    assert len(machine_advice(GENERIC, tmp_path / "cpuinfo", tmp_path / "version")) == 2


def test_a_missing_compiler_comes_before_the_build() -> None:
    assert build_it("build it", lambda _: "/usr/bin/g++") == "build it"
    without = build_it("build it", lambda _: None)
    assert without.startswith("install a C++ compiler first (Debian, Ubuntu: sudo apt install g++;")
    assert without.endswith("then build it")


@pytest.mark.parametrize(
    ("library", "remedy"),
    [
        ("libcuda.so.1", "install NVIDIA's driver"),
        ("libcudart.so.12", "install cudart and cuBLAS of the CUDA release in its name"),
        ("libcublasLt.so.13", "install cudart and cuBLAS of the CUDA release in its name"),
        ("libhipblas.so.2", "install ROCm"),
        ("libvulkan.so.1", "install Vulkan's loader"),
        ("libgomp.so.1", "build it on this machine"),
    ],
)
def test_a_library_that_is_missing_where_llama_cpp_starts_has_a_remedy(library: str, remedy: str) -> None:
    reason = f"RuntimeError: Failed to load '/libllama.so': {library}: cannot open shared object file"
    advice = start_advice(reason)
    assert advice.startswith((remedy, "install a C++ compiler first"))
    assert advice.endswith(build_it())
