"""Types and texts of both daemon and engine."""

from typing import Annotated, Final, Literal, NamedTuple, get_args

from msgspec import Meta

# Names and scales of adapters, sorted by name; only requests with equal sets are computed in one step.
AdapterSet = tuple[tuple[str, float], ...]
NO_ADAPTERS: AdapterSet = ()

# The syntax in which a model writes tool calls.
ToolStyle = Literal[
    "apertus",  # Apertus
    "apriel",  # Apriel, Jamba
    "command_r",  # Command R+
    "command_r7b",  # Command R7B and A
    "deepseek_r1",  # DeepSeek V3 and R1
    "deepseek_v3_1",  # DeepSeek V3.1
    "deepseek_v3_2",  # DeepSeek V3.2
    "deepseek_v4",  # DeepSeek V4
    "deepseek_v4_1",  # DeepSeek V4.1
    "ernie",  # ERNIE 4.5
    "firefunction",  # Firefunction 2
    "functionary_v3_1",  # Functionary
    "functionary_v3_2",  # Functionary
    "functiongemma",  # FunctionGemma
    "gemma4",  # Gemma 4
    "gigachat",  # GigaChat 3
    "glm",  # GLM 4.5 to 4.7, Ling 3, Laguna, Spark 2.5
    "gpt_oss",  # gpt-oss
    "granite",  # Granite 3, Phi-4-mini
    "hermes",  # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, EXAONE 4, MiMo-VL, Reka, Bielik
    "hunyuan",  # Hunyuan
    "hunyuan_a13b",  # Hunyuan A13B
    "kimi_k2",  # Kimi K2
    "kimi_k3",  # Kimi K3
    "lfm2",  # LFM2 and 2.5
    "llama3",  # Llama 3.1 to 3.3 and 4 (JSON)
    "llama4",  # Llama 4, Gemma 3 and others told to write lists of Python calls
    "minicpm5",  # MiniCPM 5
    "minimax_m1",  # MiniMax M1
    "minimax_m2",  # MiniMax M2
    "minimax_m3",  # MiniMax M3
    "mistral",  # Mistral, Devstral, Ministral 3
    "mistral_v3",  # Mistral without `[ARGS]` (older)
    "muse",  # Muse
    "nemotron",  # Nemotron Nano and Super
    "olmo3",  # Olmo 3
    "qwen3_coder",  # Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, MiMo-V2
    "seed_oss",  # Seed-OSS
    "solar",  # Solar Open
    "step3",  # Step 3
    "xlam",  # xLAM 2
]
# How tagged parameters of a function are read: as text, as a JSON value, or as a value if the text is one.
ParameterKind = Literal["text", "value", "any"]

# Phases of an engine's turn; the seconds of each are counted.
Phase = Literal["intake", "plan", "fill", "decode", "prefill", "sample", "text", "send", "embed"]
PHASES: tuple[Phase, ...] = get_args(Phase)

# The digest of a prompt's tools, or of a message: it tells apart the parts of a few prompts of one caller. Its first
# byte is odd for a message of the system, else even.
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
