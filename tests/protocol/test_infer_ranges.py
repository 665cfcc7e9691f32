"""The ranges of the request object: each bound is taken, one beyond it is refused by name."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import UNSET, inspect

from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.limits import MAX_VALUES
from car_protocol.params import decode_params
from car_protocol.sampling import Sampling

QUESTION = {"prompt", "tokens", "messages"}
MESSAGES = [{"role": "user", "content": "a"}]
TOOLS = [{"type": "function", "function": {"name": "a"}}]
# What some members need beside them.
COMPANY: dict[str, dict[str, Any]] = {
    "tools": {"messages": MESSAGES},
    "template_args": {"messages": MESSAGES},
    "tool_choice": {"messages": MESSAGES, "tools": TOOLS},
}


class Case(NamedTuple):
    """One value of one member."""

    member: str
    value: Any
    good: bool


def plain(kind: inspect.Type) -> inspect.Type:
    """Return what a type is beside None and without its description; of several kinds the list."""
    if isinstance(kind, inspect.Metadata):
        return plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return plain(next((each for each in kinds if isinstance(each, inspect.ListType)), kinds[0]))
    return kind


def values(kind: inspect.Type) -> Iterator[tuple[Any, bool]]:
    """Yield the values at and beyond a type's bounds, each with whether it is allowed."""
    kind = plain(kind)
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        yield from numbers(kind)
    elif isinstance(kind, inspect.StrType):
        for length, good in bounds(kind.min_length, kind.max_length):
            yield "a" * length, good
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield from lists(kind)
    elif isinstance(kind, inspect.DictType):
        yield from mappings(kind)
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            for value, good in values(field.type):
                yield {**sample(kind), field.encode_name: value}, good


def numbers(kind: inspect.IntType | inspect.FloatType) -> Iterator[tuple[float, bool]]:
    """Yield the bounds of a number and the nearest numbers beyond them."""
    if isinstance(kind, inspect.IntType):
        yield from bounds(kind.ge, kind.le)
    else:
        yield from bounds(kind.ge, kind.le, step=math.nextafter)


def lists(kind: inspect.ListType | inspect.VarTupleType) -> Iterator[tuple[list[Any], bool]]:
    """Yield lists of bounded length, and lists of one item at its bounds."""
    for length, good in bounds(kind.min_length, kind.max_length):
        yield [sample(kind.item_type)] * length, good
    for item, good in values(kind.item_type):
        yield [item], good


def mappings(kind: inspect.DictType) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield objects of bounded size, and objects of one member at its bounds."""
    for size, good in bounds(kind.min_length, kind.max_length):
        yield {str(number): sample(kind.value_type) for number in range(size)}, good
    for value, good in values(kind.value_type):
        yield {"1": value}, good


def next_integer(bound: int, towards: float) -> int:
    """Return the next integer in a direction."""
    return bound + 1 if towards > bound else bound - 1


def bounds(lower: Any, upper: Any, step: Callable[[Any, float], Any] = next_integer) -> Iterator[tuple[Any, bool]]:
    """Yield both bounds and what lies one step beyond them."""
    if lower is not None:
        yield lower, True
        yield step(lower, -math.inf), False
    if upper is not None:
        yield upper, True
        yield step(upper, math.inf), False


def sample(kind: inspect.Type) -> Any:
    """Return an allowed value."""
    kind = plain(kind)
    if isinstance(kind, inspect.IntType):
        return 1
    if isinstance(kind, inspect.FloatType):
        return 1.0
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.BoolType):
        return True
    if isinstance(kind, inspect.DictType):
        return {}
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [sample(kind.item_type)]
    if isinstance(kind, inspect.StructType):
        tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
        return tag | {field.encode_name: sample(field.type) for field in kind.fields}
    return "a"


def cases() -> list[Case]:
    """Return every case that the definition of the request gives."""
    kind = inspect.type_info(InferParams)
    assert isinstance(kind, inspect.StructType)
    return [Case(field.encode_name, *case) for field in kind.fields for case in values(field.type)]


CASES = cases()


def decode(case: Case) -> InferParams:
    """Decode a request with the case's member."""
    question = {} if case.member in QUESTION else COMPANY.get(case.member, {"prompt": "a"})
    return decode_params(InferParams, msgspec.json.encode({**question, case.member: distinct(case)}))


def distinct(case: Case) -> Any:
    """Return a case's value; adapters and functions may not be named twice."""
    if not isinstance(case.value, list) or len(case.value) < 2:
        return case.value
    if case.member == "lora":
        return [{**adapter, "name": str(place)} for place, adapter in enumerate(case.value)]
    if case.member == "tools":
        return [{"type": "function", "function": {"name": str(place)}} for place, _ in enumerate(case.value)]
    return case.value


@pytest.mark.parametrize("case", [case for case in CASES if case.good], ids=lambda case: case.member)
def test_a_value_at_a_bound_is_taken(case: Case) -> None:
    decode(case)


@pytest.mark.parametrize("case", [case for case in CASES if not case.good], ids=lambda case: case.member)
def test_a_value_beyond_a_bound_is_refused_by_name(case: Case) -> None:
    with pytest.raises(RpcError) as caught:
        decode(case)
    assert (caught.value.reason, caught.value.data["param"]) == ("invalid_params", case.member)


@pytest.mark.parametrize(
    ("member", "lowest", "highest"),
    [
        ("max_tokens", 1, 2**31 - 1),
        ("temperature", 0, 5),
        ("top_k", 0, 100_000),
        ("top_p", 0, 1),
        ("min_p", 0, 1),
        ("typical_p", 0, 1),
        ("top_n_sigma", -1, 100),
        ("logprobs", 0, 20),
        ("repeat_penalty", 0.1, 10),
        ("repeat_last_n", -1, 65_536),
        ("presence_penalty", -10, 10),
        ("frequency_penalty", -10, 10),
        ("seed", 0, 2**32 - 2),
        ("timeout_ms", 1, 86_400_000),
        ("queue_timeout_ms", 1, 86_400_000),
    ],
)
def test_the_bounds_are_those_of_the_contract(member: str, lowest: float, highest: float) -> None:
    good = [case.value for case in CASES if case.member == member and case.good]
    assert good == [lowest, highest]


@pytest.mark.parametrize(("member", "lengths"), [("stop", {16}), ("messages", {1, 512}), ("tokens", {1})])
def test_the_lengths_are_those_of_the_contract(member: str, lengths: set[int]) -> None:
    good = {len(case.value) for case in CASES if case.member == member and case.good}
    assert good - {1} == lengths - {1}


@pytest.mark.parametrize(
    ("member", "default"),
    [
        ("temperature", UNSET),
        ("top_k", 40),
        ("top_p", UNSET),
        ("min_p", 0.05),
        ("typical_p", 1),
        ("top_n_sigma", -1),
        ("xtc", None),
        ("dry", None),
        ("mirostat", None),
        ("logit_bias", {}),
        ("logprobs", None),
        ("tool_choice", "auto"),
        ("reasoning", UNSET),
        ("template_args", {}),
        ("repeat_penalty", 1),
        ("repeat_last_n", 64),
        ("presence_penalty", 0),
        ("frequency_penalty", 0),
        ("ignore_eos", False),
        ("stop", []),
        ("parse_special", False),
        ("return_tokens", False),
        ("priority", "latency_critical"),
        ("wait", True),
    ],
)
def test_the_defaults_are_those_of_the_contract(member: str, default: object) -> None:
    assert getattr(decode_params(InferParams, b'{"prompt":"a"}'), member) == default


@pytest.mark.parametrize(
    ("member", "inner", "lowest", "highest"),
    [
        ("xtc", "probability", 0, 1),
        ("xtc", "threshold", 0, 1),
        ("dry", "multiplier", 0, 10),
        ("dry", "base", 1, 10),
        ("dry", "allowed_length", 0, 1000),
        ("dry", "penalty_last_n", -1, 65_536),
        ("mirostat", "tau", 0, 20),
        ("mirostat", "eta", 0, 1),
    ],
)
def test_the_bounds_of_inner_members_are_those_of_the_contract(
    member: str, inner: str, lowest: float, highest: float
) -> None:
    kind = inspect.type_info(InferParams)
    assert isinstance(kind, inspect.StructType)
    outer = plain(next(field.type for field in kind.fields if field.encode_name == member))
    assert isinstance(outer, inspect.StructType)
    bounded = next(field.type for field in outer.fields if field.encode_name == inner)
    assert [value for value, good in values(bounded) if good] == [lowest, highest]


@pytest.mark.parametrize(("lowest", "highest", "size"), [(-100, 100, 1024)])
def test_the_bounds_of_biases_are_those_of_the_contract(lowest: float, highest: float, size: int) -> None:
    good = [case.value for case in CASES if case.member == "logit_bias" and case.good]
    assert [len(value) for value in good] == [size, 1, 1]
    assert [value["1"] for value in good[1:]] == [lowest, highest]


@pytest.mark.parametrize("key", ["", "-1", "01", "1.0", "a", "12345678901"])
def test_a_bias_for_what_is_no_token_is_refused_by_name(key: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode(Case("logit_bias", {key: 1}, good=False))
    assert caught.value.data["param"] == "logit_bias"


@pytest.mark.parametrize("version", [0, 3, 1.5, "1"])
def test_a_mirostat_that_does_not_exist_is_refused_by_name(version: object) -> None:
    with pytest.raises(RpcError) as caught:
        decode(Case("mirostat", {"version": version}, good=False))
    assert caught.value.data["param"] == "mirostat"


def chain(levels: int) -> dict[str, Any]:
    """Return an object inside which objects nest, `levels` of them in all."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


FREE_FORM: dict[str, Callable[[dict[str, Any]], Any]] = {
    "json_schema": lambda value: value,
    "template_args": lambda value: value,
    "tools": lambda value: [{"type": "function", "function": {"name": "a", "parameters": value}}],
}


@pytest.mark.parametrize("member", FREE_FORM)
def test_a_free_form_member_may_nest_64_deep(member: str) -> None:
    decode(Case(member, FREE_FORM[member](chain(64)), good=True))


@pytest.mark.parametrize("member", FREE_FORM)
def test_a_free_form_member_that_nests_deeper_is_refused_by_name(member: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode(Case(member, FREE_FORM[member](chain(65)), good=False))
    assert caught.value.data["param"] == member


WIDE: dict[str, Callable[[int], Any]] = {
    "one list": lambda count: {"a": [0] * (count - 1)},
    "lists of lists": lambda count: {"a": [[]] * (count - 1)},
    "levels": lambda count: {"a": [[0] * (count // 2 - 1)] + [0] * (count - count // 2 - 1)},
}


@pytest.mark.parametrize(("member", "shape"), list(zip(FREE_FORM, WIDE, strict=True)))
def test_the_values_of_a_free_form_member_are_bounded_before_they_are_looked_at(member: str, shape: str) -> None:
    decode(Case(member, FREE_FORM[member](WIDE[shape](MAX_VALUES)), good=True))
    with pytest.raises(RpcError) as caught:
        decode(Case(member, FREE_FORM[member](WIDE[shape](MAX_VALUES + 1)), good=False))
    assert caught.value.data["param"] == member
    assert caught.value.data["why"] == "has at least 100,001 values, at most 100,000 are allowed: send less at once"


def test_the_values_of_all_tools_are_bounded_together() -> None:
    half = WIDE["one list"](MAX_VALUES // 2 + 1)
    tools = [{"type": "function", "function": {"name": name, "parameters": half}} for name in "ab"]
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, msgspec.json.encode({"messages": MESSAGES, "tools": tools}))
    assert caught.value.data["param"] == "tools"


def test_a_number_in_a_free_form_member_that_overflows_a_double_is_refused_by_name() -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, b'{"prompt":"a","json_schema":{"minimum":1e999}}')
    assert (caught.value.reason, caught.value.data["param"]) == ("invalid_params", "json_schema")


WITH_NUMBER = {
    "json_schema": b'{"prompt":"a","json_schema":{"a":[{"b":%d}]}}',
    "template_args": b'{"messages":[{"role":"user","content":"a"}],"template_args":{"a":[{"b":%d}]}}',
    "tools": b'{"messages":[{"role":"user","content":"a"}],'
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[{"b":%d}]}}}]}',
}


@pytest.mark.parametrize("member", WITH_NUMBER)
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300])
def test_integers_of_more_than_64_bits_become_doubles(member: str, number: int) -> None:
    params = decode_params(InferParams, WITH_NUMBER[member] % number)
    free_form = params.tools[0].function.parameters if member == "tools" else getattr(params, member)
    assert free_form == {"a": [{"b": float(number)}]}
    assert msgspec.msgpack.encode(free_form)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits_stay_what_they_are(number: int) -> None:
    schema = decode_params(InferParams, WITH_NUMBER["json_schema"] % number).json_schema
    assert schema == {"a": [{"b": number}]}
    assert schema is not None
    assert isinstance(schema["a"][0]["b"], int)


@pytest.mark.parametrize("member", WITH_NUMBER)
def test_an_integer_that_overflows_a_double_is_refused_too(member: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, WITH_NUMBER[member] % 10**400)
    assert (caught.value.reason, caught.value.data["param"]) == ("invalid_params", member)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"prompt": "a", "grammar": "a", "json_schema": {}}, "json_schema"),
        ({"prompt": "a", "tools": TOOLS}, "tools"),
        ({"prompt": "a", "template_args": {"a": 1}}, "template_args"),
        ({"messages": MESSAGES, "tools": TOOLS * 2}, "tools"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "tools": TOOLS, "tool_choice": {"name": "b"}}, "tool_choice"),
        ({"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "grammar": "a"}, "tool_choice"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages"),
        ({"prompt": "a", "grammar": "a" * (256 * 1024 + 1)}, "grammar"),
        ({"prompt": "a", "stop": ["\u00e9" * 129]}, "stop"),
        ({"prompt": "a", "client": "\u00e9" * 33}, "client"),
        ({"prompt": "a", "tenant": "\u00e9" * 33}, "tenant"),
        ({"prompt": "a", "session": "\u00e9" * 65}, "session"),
        ({"prompt": "a", "cache_salt": "\u00e9" * 65}, "cache_salt"),
        ({"prompt": "a", "supersede": "\u00e9" * 65}, "supersede"),
    ],
)
def test_a_wrong_combination_or_size_is_refused_by_name(params: dict[str, Any], param: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, msgspec.json.encode(params))
    assert (caught.value.reason, caught.value.data["param"]) == ("invalid_params", param)


def test_a_message_may_be_tool_calls_alone() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    params = {"messages": [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert decode_params(InferParams, msgspec.json.encode(params)).messages is not None


def test_members_that_an_entry_may_hold_have_these_values_without_one() -> None:
    assert (Sampling().temperature, Sampling().top_p) == (0.8, 0.95)
