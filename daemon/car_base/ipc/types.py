"""Types and texts of both daemon and engine."""

from typing import Annotated, Final, Literal, NamedTuple, get_args

from msgspec import Meta

# Names and scales of adapters, sorted by name; only requests with equal sets are computed in one step.
AdapterSet = tuple[tuple[str, float], ...]
NO_ADAPTERS: AdapterSet = ()

# The syntax in which a model writes tool calls.
ToolStyle = Literal[
    "apertus",
    "apriel",
    "command_r",
    "command_r7b",
    "deepseek_r1",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "deepseek_v4",
    "deepseek_v4_1",
    "ernie",
    "firefunction",
    "functionary_v3_1",
    "functionary_v3_2",
    "functiongemma",
    "gemma4",
    "gigachat",
    "glm",
    "gpt_oss",
    "granite",
    "hermes",
    "hunyuan",
    "hunyuan_a13b",
    "kimi_k2",
    "kimi_k3",
    "lfm2",
    "llama3",
    "llama4",
    "minicpm5",
    "minimax_m1",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "mistral_v3",
    "muse",
    "nemotron",
    "olmo3",
    "qwen3_coder",
    "seed_oss",
    "solar",
    "step3",
    "xlam",
]
# How tagged parameters of a function are read: as text, as a JSON value, or as a value where the text is one.
ParameterKind = Literal["text", "value", "any"]

# Phases of an engine's turn; the seconds of each are counted.
Phase = Literal["intake", "plan", "fill", "decode", "prefill", "sample", "text", "send", "embed"]
PHASES: tuple[Phase, ...] = get_args(Phase)

# The digest of a prompt's tools, or of a message: it tells apart the parts of a few prompts of one caller.
PART_BYTES = 8

# The numbers in which an engine keeps keys and values.
KvType = Literal["f16", "q8_0", "q4_0"]

# The end of the names of files with cells, and their longest time without a use: prompts should not stay on a disk, and
# a uid may be given to another person.
STORED_SUFFIX = ".cells"
STORED_AGE_S = 7 * 24 * 3600.0

# Input of a declaration: cores that other programs used while costs were measured, if they kept threads waiting.
COST_CORES: Final = "cores_of_others"
# Event of the frame with which an engine reports the defect that ends it.
ENGINE_FAILED: Final = "engine.failed"
# Whether daemon and engines give up what they do not need, as far as the kernel supports it.
Sandbox = Literal["strict", "off"]
# Refusal of a grammar or schema with too many states.
TOO_COMPLEX = "it became too complex"
# Refusal of an image whose pixels cannot be decoded.
DAMAGED_IMAGE = "the image is damaged or truncated"
# Refusal of a sound whose samples cannot be decoded.
DAMAGED_AUDIO = "the audio is damaged or truncated"


Tag = Annotated[str, Meta(min_length=1, max_length=64)]


class Tags(NamedTuple):
    """The markers around a model's reasoning."""

    open: Tag
    close: Tag
