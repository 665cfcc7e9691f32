"""Table of the families of models: the texts around calls, names and arguments, and how arguments are written."""

# DeepSeek and Hunyuan write their control tokens with a wide bar.
# ruff: noqa: RUF001

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from car_base.ipc.types import ParameterKind, ToolStyle


class Blank(Enum):
    """A place in a head: the function's name, a parameter's name, its type, or a word that is skipped."""

    NAME = "name"
    KEY = "key"
    TYPE = "type"
    WORD = "word"


class Maybe(NamedTuple):
    """A text that a model may leave out; forced calls have it."""

    text: str


class Aside(NamedTuple):
    """A text with a word after it that a model may write; forced calls go without."""

    text: str


class Attribute(NamedTuple):
    """A text with a slot after it that a model may leave out; forced calls have both."""

    text: str
    slot: Blank


# Texts and slots in their order; whitespace may stand before tags.
Head = tuple[str | Blank | Maybe | Aside | Attribute, ...]
# object: a JSON object with the name and the arguments; keyed: one with the name as its only key; json: one after the
# head; parameters: a tagged text each; python: f(a=1); gemma: {a:1} with quotes of its own.
Notation = Literal["object", "keyed", "json", "parameters", "python", "gemma"]
NAME, KEY, TYPE, WORD = Blank.NAME, Blank.KEY, Blank.TYPE, Blank.WORD


class Parameter(NamedTuple):
    """The texts around a tagged parameter; `close` may contain its name; `pad` stands around its value."""

    open: Head
    close: str
    pad: str = ""
    types: tuple[str, str] = ("string", "object")  # of texts and of other values
    cdata: bool = False  # whether a text may be a CDATA section

    def type_of(self, kind: ParameterKind, schema: Mapping[str, object]) -> str:
        """Return the word for a parameter's type."""
        if kind != "value":
            return self.types[0]
        named = schema.get("type")
        if self.types[1] != "object" or not isinstance(named, str):
            return self.types[1]
        return "number" if named == "integer" else named


class MessageHeader(NamedTuple):
    """The head of a message in an answer of several messages.

    `start` ends the prompt too. A header that matches `thought` begins reasoning, `call` has the called name as its
    group; others begin text. `ends` end a message.
    """

    start: str
    starts: tuple[str, ...]
    end: str
    ends: tuple[str, ...]
    thought: re.Pattern[str] | None = None
    call: re.Pattern[str] | None = None
    text: re.Pattern[str] | None = None  # of a text's header; without it all other headers begin text


@dataclass(frozen=True)
class Family:
    """The syntax of one family's calls.

    Calls stand between `open` and `close`, several calls one after the other with `between`, in brackets if `listed`;
    with `each` every call has both texts of its own. Without `open` the answer begins with its calls, unless heads are
    enough (`bare`): text may stand beside such calls, also between `open` and `close`. `dropped` texts are left out.
    """

    open: str = ""
    close: str = ""
    each: bool = False
    listed: bool = False
    bare: bool = False
    between: str = ""
    head: Head = ()
    notation: Notation = "object"
    quote: str = ""  # of texts in Gemma's notation
    keys: tuple[str, str] = ("name", "arguments")
    parameter: Parameter | None = None
    tail: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # other texts for `open`
    after: str = ""  # a text that may follow calls without a marker
    escaped: bool = False  # whether names in quotes have `&` and `"` as XML writes them
    dropped: tuple[str, ...] = ()  # a line break at their ends may be missing
    header: MessageHeader | None = None
    lead: str = ""  # before a forced call, with its `{name}`
    untagged: tuple[tuple[str, str], ...] = ()  # texts around a call without its tags that is a whole answer
    needs: str = ""  # a control token; a vocabulary without it writes calls in the style `older`
    older: ToolStyle | None = None

    @property
    def opens(self) -> tuple[str, ...]:
        """All texts that begin calls."""
        return (self.open, *self.also) if self.open else self.also

    @property
    def is_whole(self) -> bool:
        """True if an answer begins with its calls, without a marker, or has none."""
        return not (self.open or self.bare or self.header)

    @property
    def begins_with_name(self) -> bool:
        """True if nothing but its name begins a call, so that any word could."""
        return bool(self.head) and self.head[0] is NAME

    @property
    def sections(self) -> tuple[str, ...]:
        """The texts around calls that are calls without them too, so that they are left out like `dropped` texts."""
        return (*self.opens, self.close) if self.bare and self.close and not self.each else ()

    @property
    def begins_answer(self) -> tuple[str, ...]:
        """The texts that an answer begins with if the family frames its answers: a thought never begins so."""
        return (*self.dropped, *self.opens) if self.dropped else ()

    def quoted_name(self, name: str) -> str:
        """Return a name as it stands in quotes."""
        return name.replace("&", "&amp;").replace('"', "&quot;") if self.escaped else name

    def name_of(self, word: str) -> str:
        """Return the name that a word in quotes stands for."""
        return word.replace("&quot;", '"').replace("&amp;", "&") if self.escaped else word

    @property
    def follows(self) -> str:
        """The character that has to follow a head without its last text, empty if the head is enough."""
        if self.notation == "gemma" or (self.notation == "json" and isinstance(self.head[-1], Maybe)):
            return "{"
        return "<" if self.notation == "parameters" and self.begins_with_name else ""

    @property
    def forces_one(self) -> bool:
        """True if a forced answer has one call: others would need messages of their own."""
        return self.header is not None and not self.between

    @property
    def frames_text(self) -> bool:
        """True if answers without calls have markers too."""
        return bool(self.dropped) or self.header is not None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of the vocabulary and have to be shown as text to be read."""
        return tuple(dict.fromkeys(text for text in self._texts() if text))

    def _texts(self) -> Iterator[str]:
        parameter = (*_literals(self.parameter.open), self.parameter.close) if self.parameter is not None else ()
        header = (*self.header.starts, self.header.end, *self.header.ends) if self.header is not None else ()
        for text in (
            *self.opens,
            self.close,
            *_literals(self.head),
            *self.tail,
            self.after,
            *self.dropped,
            *parameter,
            *header,
        ):
            yield text.strip()
            # Control tokens may be parts of longer texts.
            yield from _MARKER.findall(text)
        yield self.quote


_MARKER = re.compile(r"<[|｜][^<>|｜]+[|｜]>|<[|｜][a-z_]+>|<[a-z_]+[|｜]>|\[[A-Z_]+\]|\]<\]minimax\[>\[|｜DSML｜")


CDATA = "<![CDATA["


def _literals(head: Head) -> list[str]:
    return [(piece if isinstance(piece, str) else piece.text).strip() for piece in head if not isinstance(piece, Blank)]


_CODER: Head = ("<function=", NAME, ">\n")
_CODER_PARAMETER = Parameter(("<parameter=", KEY, ">"), "</parameter>", "\n")
_INVOKE_PARAMETER = Parameter(('<parameter name="', KEY, '">'), "</parameter>")


def _dsml(section: str, space: str = "") -> Family:
    """Return a family of DeepSeek's: its words follow the control token, with a space in between from V4.1 on."""
    token = f"｜DSML｜{space}"
    return Family(
        open=f"<{token}{section}>\n",
        close=f"</{token}{section}>",
        bare=True,
        between="\n",
        notation="parameters",
        head=(f'<{token}invoke name="', NAME, '">\n'),
        parameter=Parameter(
            (f'<{token}parameter name="', KEY, Attribute('" string="', TYPE), '">'),
            f"</{token}parameter>",
            types=("true", "false"),
        ),
        tail=(f"</{token}invoke>",),
    )


FAMILIES: dict[ToolStyle, Family] = {
    "gpt_oss": Family(
        notation="json",
        head=(" to=functions.", NAME, "<|channel|>commentary json<|message|>"),
        header=MessageHeader(
            "<|start|>assistant",
            ("<|start|>assistant", "<|channel|>"),
            "<|message|>",
            ("<|end|>", "<|call|>", "<|return|>"),
            re.compile(r"<\|channel\|>analysis\s*$"),
            re.compile(r"to=(?!(?:assistant|user)(?:[\s<]|$))(?:functions\.)?([A-Za-z0-9_.-]+)(?=[\s<]|$)"),
        ),
    ),
    "muse": Family(
        lead=" to={name}<|message|>",
        open="<atem:function_calls>\n",
        close="</atem:function_calls>",
        each=True,
        notation="parameters",
        head=('<atem:invoke name="', NAME, '">\n'),
        parameter=Parameter(('<atem:parameter name="', KEY, '">'), "</atem:parameter>"),
        tail=("</atem:invoke>",),
        header=MessageHeader(
            "<|start|>assistant",
            ("<|start|>assistant",),
            "<|message|>",
            ("<|eom|>", "<|eot|>"),
            re.compile(r"to=self\s*$"),
        ),
    ),
    "kimi_k3": Family(
        open="<|open|>tools<|sep|>",
        close="<|close|>tools<|sep|>",
        bare=True,
        escaped=True,
        notation="parameters",
        head=('<|open|>call tool="', NAME, Attribute('" index="', WORD), '"<|sep|>'),
        parameter=Parameter(
            ('<|open|>argument key="', KEY, Attribute('" type="', TYPE), '"<|sep|>'), "<|close|>argument<|sep|>"
        ),
        tail=("<|close|>call<|sep|>",),
        dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    "gemma4": Family(
        open="<|tool_call>",
        close="<tool_call|>",
        each=True,
        notation="gemma",
        quote='<|"|>',
        head=("call:", NAME),
    ),
    "functiongemma": Family(
        open="<start_function_call>",
        close="<end_function_call>",
        each=True,
        notation="gemma",
        quote="<escape>",
        head=("call:", NAME),
    ),
    "step3": Family(
        open="<｜tool_calls_begin｜>",
        close="<｜tool_calls_end｜>",
        notation="parameters",
        head=(
            Maybe("<｜tool_call_begin｜>"),
            Maybe("function"),
            Maybe("<｜tool_sep｜>"),
            '<steptml:invoke name="',
            NAME,
            '">',
        ),
        parameter=Parameter(('<steptml:parameter name="', KEY, '">'), "</steptml:parameter>"),
        tail=(
            "</steptml:invoke>",
            "<｜tool_call_end｜>",
        ),
    ),
    "seed_oss": Family(
        open="<seed:tool_call>",
        close="</seed:tool_call>",
        each=True,
        between="\n",
        notation="parameters",
        head=_CODER,
        parameter=_CODER_PARAMETER._replace(pad=""),
        tail=("</function>",),
    ),
    "hunyuan_a13b": Family(
        open="<tool_calls>",
        close="</tool_calls>",
        listed=True,
        between=", ",
        dropped=("<answer>\n", "</answer>"),
    ),
    "hunyuan": Family(
        open="<tool_calls:opensource>\n",
        close="</tool_calls:opensource>",
        between="\n",
        notation="parameters",
        head=("<tool_call:opensource>", NAME, "<tool_sep:opensource>\n"),
        parameter=Parameter(
            ("<arg_key:opensource>", KEY, "</arg_key:opensource>", "\n<arg_value:opensource>"),
            "</arg_value:opensource>",
        ),
        tail=("</tool_call:opensource>",),
    ),
    "glm": Family(
        open="<tool_call>",
        close="</tool_call>",
        each=True,
        between="\n",
        notation="parameters",
        head=(NAME,),
        parameter=Parameter(("\n<arg_key>", KEY, "</arg_key>", "\n<arg_value>"), "</arg_value>"),
    ),
    "minimax_m3": Family(
        open="]<]minimax[>[<tool_call>\n",
        close="]<]minimax[>[</tool_call>",
        between="\n",
        notation="parameters",
        head=(']<]minimax[>[<invoke name="', NAME, '">'),
        parameter=Parameter(("]<]minimax[>[<", KEY, ">"), "]<]minimax[>[</{key}>"),
        tail=("]<]minimax[>[</invoke>",),
    ),
    "minimax_m2": Family(
        open="<minimax:tool_call>\n",
        close="</minimax:tool_call>",
        between="\n",
        notation="parameters",
        head=('<invoke name="', NAME, '">\n'),
        parameter=_INVOKE_PARAMETER,
        tail=("</invoke>",),
    ),
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v4_1": _dsml("calls", space=" "),
    "deepseek_r1": Family(
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        between="\n",
        bare=True,
        notation="json",
        head=("<｜tool▁call▁begin｜>", Maybe("function<｜tool▁sep｜>"), NAME, Maybe("\n```json\n")),
        tail=("\n```", "<｜tool▁call▁end｜>"),
    ),
    "deepseek_v3_1": Family(
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        bare=True,
        notation="json",
        head=("<｜tool▁call▁begin｜>", NAME, "<｜tool▁sep｜>"),
        tail=("<｜tool▁call▁end｜>",),
    ),
    "kimi_k2": Family(
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
        bare=True,
        notation="json",
        head=("<|tool_call_begin|>", Maybe("functions."), NAME, ":", WORD, "<|tool_call_argument_begin|>"),
        tail=("<|tool_call_end|>",),
    ),
    "solar": Family(
        open="<|tool_calls|>",
        close="<|calls|>",
        bare=True,
        notation="json",
        head=("<|tool_call:begin|>", WORD, "<|tool_call:name|>", NAME, "<|tool_call:args|>"),
        tail=("<|tool_call:end|>",),
        dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
    "command_r7b": Family(
        open="<|START_ACTION|>",
        close="<|END_ACTION|>",
        listed=True,
        between=", ",
        keys=("tool_name", "parameters"),
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "command_r": Family(
        open="Action:\n```json\n",
        close="\n```",
        listed=True,
        between=", ",
        keys=("tool_name", "parameters"),
    ),
    "apertus": Family(
        open="<|tools_prefix|>",
        close="<|tools_suffix|>",
        listed=True,
        between=", ",
        notation="keyed",
    ),
    "lfm2": Family(
        open="<|tool_call_start|>",
        close="<|tool_call_end|>",
        listed=True,
        between=", ",
        notation="python",
        head=(NAME, "("),
        tail=(")",),
    ),
    "nemotron": Family(open="<TOOLCALL>", close="</TOOLCALL>", listed=True, between=", "),
    "gigachat": Family(
        open="<|function_call|>",
        also=("<|message_sep|>\n\nfunction call<|role_sep|>",),
        each=True,
    ),
    "minicpm5": Family(
        bare=True,
        between="\n",
        notation="parameters",
        head=('<function name="', NAME, '">'),
        parameter=Parameter(('<param name="', KEY, '">'), "</param>", cdata=True),
        tail=("</function>",),
    ),
    "qwen3_coder": Family(
        open="<tool_call>\n",
        close="\n</tool_call>",
        each=True,
        between="\n",
        bare=True,
        notation="parameters",
        head=_CODER,
        parameter=_CODER_PARAMETER,
        tail=("</function>",),
    ),
    "functionary_v3_1": Family(bare=True, notation="json", head=("<function=", NAME, ">"), tail=("</function>",)),
    "functionary_v3_2": Family(
        notation="json",
        head=(NAME, "\n"),
        between=">>>",
        header=MessageHeader(
            ">>>",
            (">>>",),
            "\n",
            (),
            None,
            re.compile(r">>>(?!all\s*$)([A-Za-z0-9_.-]+)\s*$"),
            re.compile(r">>>all\s*$"),
        ),
    ),
    "firefunction": Family(open="functools", listed=True, between=", "),
    "granite": Family(open="<|tool_call|>", close="<|/tool_call|>", listed=True, between=", "),
    "minimax_m1": Family(open="<tool_calls>\n", close="\n</tool_calls>", between="\n"),
    "apriel": Family(open="<tool_calls>", close="</tool_calls>", listed=True, between=", "),
    "ernie": Family(
        open="<tool_call>\n",
        close="\n</tool_call>",
        each=True,
        between="\n",
        dropped=("<response>\n", "</response>\n"),
    ),
    "hermes": Family(
        open="<tool_call>\n",
        close="\n</tool_call>",
        each=True,
        between="\n",
        # Qwen2.5-Coder's, which seldom writes the tags that its template shows.
        untagged=(("```json", "```"), ("```", "```"), ("<tools>", "</tools>"), ("", "")),
    ),
    "olmo3": Family(
        open="<function_calls>\n",
        close="\n</function_calls>",
        between="\n",
        notation="python",
        head=(NAME, "("),
        tail=(")",),
    ),
    "mistral": Family(
        open="[TOOL_CALLS]",
        each=True,
        listed=True,
        notation="json",
        head=(NAME, Aside("[CALL_ID]"), Maybe("[ARGS]")),
        needs="[ARGS]",
        older="mistral_v3",
    ),
    "mistral_v3": Family(open="[TOOL_CALLS]", listed=True, between=", "),
    "llama4": Family(
        also=("<|python_start|>",),
        after="<|python_end|>",
        listed=True,
        between=", ",
        notation="python",
        head=(NAME, "("),
        tail=(")",),
    ),
    "xlam": Family(listed=True, between=", "),
    "llama3": Family(
        also=("<|python_tag|>", "<|python_start|>"),
        after="<|python_end|>",
        between="; ",
        keys=("name", "parameters"),
    ),
}
