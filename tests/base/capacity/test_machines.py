"""Length and number of sequences over invented machines: as a table, never over the memory, and monotone in it."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from car_base.capacity.capacity import LEAST_CONTEXT, CapacityInputs, Declared, declare, estimate_capacity
from car_base.capacity.curve import Curve
from car_base.ipc.model_sizes import SequenceBytes
from car_base.ipc.types import KvType

GB = 1000**3
FREE = 0.9  # the largest part of the free memory that a KV cache may take
# Eight sequences are the knee.
CURVE = Curve({1: 0.010, 2: 0.011, 4: 0.013, 8: 0.018, 16: 0.040, 32: 0.080}, {})
KV_TYPES = get_args(KvType)
# Attention of published models: the KV heads of each layer, and the numbers of a head's key and value.
SMALL = ((8,) * 16, 64, 64)
MEDIUM = ((8,) * 32, 128, 128)
LARGE = ((8,) * 80, 128, 128)


def need(free: int, **facts: Any) -> CapacityInputs:
    """Return the need of an engine by the cost curve."""
    defaults: dict[str, Any] = {
        "sequence_bytes": SequenceBytes.attending(*MEDIUM),
        "total_bytes": free,
        "trained_context": 131_072,
        "policy": "measured",
        "curve": CURVE,
        "max_itl": 0.150,
    }
    return CapacityInputs(free_bytes=free, **{**defaults, **facts})


def taken(need: CapacityInputs, declared: Declared) -> int:
    """Return the bytes of all sequences, with the attention mask of a batch."""
    each = need.sequence_bytes
    return declared.sequences * each.of(declared.context_tokens) + each.mask(declared.context_tokens)


@pytest.mark.parametrize(
    ("attention", "free_gb", "trained", "kv_type", "expected"),
    [
        (SMALL, 4, 2048, "f16", (8, 2048)),
        (SMALL, 4, 131_072, "f16", (2, 14_848)),
        (SMALL, 4, 131_072, "q4_0", (2, 51_200)),
        (SMALL, 16, 32_768, "f16", (2, 32_768)),
        (SMALL, 64, 131_072, "f16", (2, 131_072)),
        (SMALL, 512, 131_072, "f16", (8, 131_072)),
        (SMALL, 512, 1 << 20, "f16", (2, 1_048_576)),
        (MEDIUM, 4, 8192, "f16", (2, 3584)),
        (MEDIUM, 4, 8192, "q8_0", (2, 6912)),
        (MEDIUM, 4, 8192, "q4_0", (2, 8192)),
        (MEDIUM, 16, 131_072, "f16", (2, 15_104)),
        (MEDIUM, 128, 32_768, "f16", (4, 32_768)),
        (MEDIUM, 128, 131_072, "q4_0", (4, 131_072)),
        (LARGE, 4, 131_072, "f16", (1, 2048)),
        (LARGE, 64, 131_072, "f16", (2, 24_320)),
        (LARGE, 64, 131_072, "q4_0", (2, 86_272)),
        (LARGE, 512, 32_768, "f16", (8, 32_768)),
    ],
)
def test_the_decisions_of_machines(
    attention: tuple[tuple[int, ...], int, int], free_gb: int, trained: int, kv_type: KvType, expected: tuple[int, int]
) -> None:
    each = SequenceBytes.attending(*attention, kv_type=kv_type)
    declared = declare(need(free_gb * GB, sequence_bytes=each, trained_context=trained))
    assert (declared.sequences, declared.context_tokens) == expected


@st.composite
def needs(draw: st.DrawFn, /, **given: Any) -> CapacityInputs:
    """Draw machines of 4 to 512 GB, models trained for 2,048 to 1,048,576 tokens, and configurations."""
    layers, heads, width = (
        draw(st.integers(1, 128)),
        draw(st.integers(0, 32)),
        draw(st.sampled_from([32, 64, 128, 256])),
    )
    states = draw(st.sampled_from([0, 0, 10**6, 10**9]))
    facts = {
        "sequence_bytes": SequenceBytes.attending(
            [heads] * layers,
            width,
            width,
            draw(st.sampled_from([(), (512,) * (layers // 2), (4096,) * layers])),
            states,
            draw(st.sampled_from(KV_TYPES)),
        ),
        "total_bytes": 512 * GB,
        "trained_context": draw(st.integers(2048, 1 << 20)),
        "policy": draw(st.sampled_from(["measured", "memory", "ram_tiers", "ram_per_8gb"])),
        "context_tokens": draw(st.none() | st.integers(1, 1 << 20)),
        "sequences": draw(st.none() | st.integers(1, 64)),
        "most_sequences": draw(st.sampled_from([1, 256, 256])),
    }
    return need(draw(st.integers(4 * GB, 512 * GB)), **{**facts, **given})


@settings(max_examples=500)
@given(needs())
def test_no_machine_gives_more_than_it_has_unless_one_least_sequence_takes_it(need: CapacityInputs) -> None:
    declared = declare(need)
    least = declared.sequences == 1 and declared.context_tokens <= LEAST_CONTEXT
    assert least or taken(need, declared) <= FREE * need.free_bytes


@settings(max_examples=500)
@given(needs(), st.integers(0, 512 * GB))
def test_more_memory_never_gives_less(need: CapacityInputs, more: int) -> None:
    before = declare(need)
    after = declare(structs.replace(need, free_bytes=need.free_bytes + more))
    assert after.context_tokens >= before.context_tokens
    assert after.sequences >= before.sequences


@settings(max_examples=300)
@given(needs(context_tokens=None, sequences=None))
def test_by_itself_an_engine_takes_a_quarter_at_most_and_a_long_sequence_leaves_room_for_another(
    need: CapacityInputs,
) -> None:
    found = estimate_capacity(need)
    room = need.sequence_bytes.number_within(need.free_bytes // 4, found.context_tokens)
    assert found.context_tokens == LEAST_CONTEXT or room >= 2
    assert all(
        need.sequence_bytes.number_within(need.free_bytes // 4, each.context_tokens) >= each.sequences
        for each in found.offers
    )


@settings(max_examples=200)
@given(needs(context_tokens=None), st.sampled_from(["q8_0", "q4_0"]))
def test_a_smaller_kv_type_never_gives_shorter_sequences(need: CapacityInputs, kv_type: KvType) -> None:
    sizes = (SequenceBytes.attending(*MEDIUM), SequenceBytes.attending(*MEDIUM, kv_type=kv_type))
    whole, small = (declare(structs.replace(need, sequence_bytes=each)) for each in sizes)
    assert small.context_tokens >= whole.context_tokens
    assert small.sequences >= whole.sequences
