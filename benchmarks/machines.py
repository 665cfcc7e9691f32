"""Machines of the simulation: seconds by rows and tokens, as measured on the named processors."""

from benchmarks.simulation import Machine

# Two x86-64 cores and a q8_0 model of 135M dimensions, as measured in a quiet hour.
TWO_CORES = Machine(
    decode={
        1: 0.0082,
        2: 0.016,
        3: 0.018,
        4: 0.019,
        6: 0.0252,
        7: 0.0272,
        8: 0.0247,
        12: 0.0305,
        15: 0.0392,
        16: 0.0332,
    },
    prefill={1: 0.0075, 8: 0.021, 16: 0.031, 32: 0.056, 64: 0.095, 128: 0.180, 256: 0.350, 512: 0.740},
    per_cell={16: 2.4e-6, 32: 2.2e-6, 64: 1.6e-6, 128: 1.2e-6, 256: 1.0e-6, 512: 0.95e-6},
)
# SmolLM2 Q4_1 on two cores without AVX-512 (decisions 12 and 17).
AVX2 = Machine(
    decode={
        1: 0.0064,
        2: 0.0145,
        3: 0.0176,
        4: 0.0209,
        5: 0.025,
        6: 0.028,
        8: 0.031,
        12: 0.041,
        16: 0.051,
        32: 0.096,
    },
    prefill={1: 0.0064, 8: 0.029, 16: 0.056, 64: 0.235, 128: 0.463, 512: 1.85},
    per_cell={1: 5.5e-6, 16: 4.5e-6, 64: 1.64e-6, 128: 1.3e-6},
)
# Two cores with AMX, the same model (decision 19).
AMX = Machine(
    decode={1: 0.0069, 8: 0.0124, 16: 0.018},
    prefill={1: 0.0069, 8: 0.0124, 16: 0.018, 64: 0.034, 256: 0.120, 512: 0.240},
    per_cell={16: 2.4e-6, 64: 1.0e-6},
)
# A model that waits for its memory: 1, 8 and 64 rows cost 1, 1.1 and 1.9 times 40 ms.
MEMORY_BOUND = Machine(
    decode={1: 0.040, 8: 0.044, 64: 0.076},
    prefill={1: 0.040, 8: 0.044, 64: 0.076, 512: 0.300},
    per_cell={16: 1e-7, 512: 1e-7},
)
# A GPU, by the time of its launches.
GPU = Machine(
    decode={1: 0.00205, 16: 0.0028},
    prefill={1: 0.00205, 512: 0.0276},
    per_cell={16: 2e-9, 512: 2e-9},
)
# Eight rows cost five times as much as one.
STEEP = Machine(
    decode={1: 0.0055, 2: 0.010, 4: 0.017, 8: 0.0275, 16: 0.045},
    prefill={1: 0.0055, 8: 0.0275, 16: 0.045, 64: 0.130, 256: 0.480, 512: 0.960},
    per_cell={16: 2.4e-6, 48: 2.2e-6, 64: 1.1e-6, 512: 0.95e-6},
)
# Two rows cost 2.7 times one, and eight less than seven: q8_0 and q4_0 of random weights.
_Q8_0 = (5.7, 15.5, 20.0, 22.8, 26.6, 29.0, 31, 25, 29, 29, 29, 29, 32, 34, 37, 28)
_Q4_0 = (3.1, 5.1, 6.9, 5.8, 7.7, 9.2, 11.5, 9.1, 11, 11.5, 12, 12.7, 14, 16, 17.8, 13.1)
UNEVEN_Q8_0 = Machine(
    decode={rows: ms / 1000 for rows, ms in enumerate(_Q8_0, 1)},
    prefill={1: 0.0057, 8: 0.025, 16: 0.028, 64: 0.100, 512: 0.780},
    per_cell={16: 2.4e-6, 64: 1.2e-6},
)
UNEVEN_Q4_0 = Machine(
    decode={rows: ms / 1000 for rows, ms in enumerate(_Q4_0, 1)},
    prefill={1: 0.0031, 8: 0.0091, 16: 0.0131, 64: 0.047, 512: 0.370},
    per_cell={16: 2.4e-6, 64: 1.2e-6},
)
# Qwen2.5-0.5B Q4_K_M on one thread of a processor with AVX-512: two rows cost 3.5 times one. Chunks from 32 tokens on
# and the prices of cells are rough, from a busy machine.
Q4_K_M = Machine(
    decode={
        1: 0.0195,
        2: 0.068,
        3: 0.085,
        4: 0.090,
        6: 0.132,
        7: 0.144,
        8: 0.121,
        12: 0.148,
        16: 0.141,
    },
    prefill={1: 0.0195, 8: 0.121, 16: 0.141, 32: 0.260, 64: 0.480, 256: 1.85, 512: 3.70},
    per_cell={16: 4e-6, 64: 2e-6},
)
MACHINES = {
    "two cores": TWO_CORES,
    "AVX2, Q4_1": AVX2,
    "AMX": AMX,
    "memory-bound": MEMORY_BOUND,
    "GPU": GPU,
    "steep": STEEP,
    "uneven q8_0": UNEVEN_Q8_0,
    "uneven q4_0": UNEVEN_Q4_0,
    "Q4_K_M": Q4_K_M,
}
