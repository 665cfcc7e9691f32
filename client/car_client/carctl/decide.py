"""`carctl decide`: typed questions about one state, as bars, lines or JSON, and as an exit code for scripts."""

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from car_client.carctl.failure import WrongUse
from car_client.carctl.request import read_text
from car_client.carctl.terminal.text import is_terminal, one_line, shortened
from car_client.carctl.view.json_output import json_text
from car_client.client import Client
from car_client.options import DecideOptions
from car_client.results import Decision
from car_protocol.decide import (
    MAX_NAME_BYTES,
    Choice,
    ChoiceAnswer,
    Level,
    Option,
    Predicate,
    PredicateAnswer,
    Question,
    QuestionAnswer,
    Score,
    ScoreAnswer,
)

# The exit code if the condition of --if does not hold: errors have others.
NOT_SO = 3
_COMPARISONS = {">=": ge, "<=": le, ">": gt, "<": lt}
_FIGURE = re.compile(r"\s*(?:=(?P<option>.+?))?(?:(?P<sign>[<>]=?)\s*(?P<bound>\d+\.?\d*|\.\d+))?", re.ASCII)
_WORD = re.compile(r"[^<>=]+")
# A name before a statement is one word: other signs belong to the statement.
_NAMED = re.compile(r"\s*(?P<name>[\w-]+)\s*=(?!=)\s*(?P<statement>.*)", re.DOTALL)
_NAME_WIDTH = 24
_BAR_WIDTH = 30


class Condition(NamedTuple):
    """What --if compares: the probability of an option or a predicate, or a score, with a bound; or the best option."""

    name: str
    option: str | None
    sign: str | None
    bound: float
    rest: str | None = None  # all after the "=" before an option, which may look like a comparison, such as `1>0`

    def of(self, question: Question) -> Callable[[QuestionAnswer], bool]:
        """Return whether it holds of an answer to this question; raises WrongUse if the question has no such figure."""
        labels = list(_labels(question))
        if self.sign is not None and self.rest in labels:
            return self._replace(option=self.rest, sign=None).of(question)
        if self.option is not None and self.option not in labels:
            raise WrongUse(f"--if: {self.name} has no option {self.option!r}: it has {', '.join(labels)}")
        if self.option is None and isinstance(question, Choice):
            bound = "" if self.sign is None else ">0.7"
            raise WrongUse(f"--if {self.name}: name one of its options, such as {self.name}={labels[0]}{bound}")
        if self.sign is None:
            if not isinstance(question, Choice):
                figure = self.name if self.option is None else f"{self.name}={self.option}"
                raise WrongUse(f"--if {figure}: compare it with a number, such as {figure}>0.7")
            return lambda answer: isinstance(answer, ChoiceAnswer) and _shown(answer.choice) == self.option
        scored = self.option is None and isinstance(question, Score)
        most = len(labels) - 1 if scored else 1
        if self.bound > most:
            raise WrongUse(f"--if {self.name}: it is between 0 and {most}: compare it with a number up to {most}")
        compares, place = _COMPARISONS[self.sign], labels.index(self.option or labels[0])

        def holds(answer: QuestionAnswer) -> bool:
            figure = answer.score if scored and isinstance(answer, ScoreAnswer) else answer.probabilities[place]
            return bool(compares(figure, self.bound))

        return holds


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("state", nargs="?", metavar="STATE", help="the text; - reads standard input")
    parser.add_argument("-f", "--file", metavar="FILE", help="the state: JSON, or a text; - reads standard input")
    for flag, make, metavar, text in _QUESTIONS:
        parser.add_argument(flag, dest="questions", action="append", type=make, metavar=metavar, help=text)
    parser.add_argument("--model", metavar="NAME", help="a model in place of the default one")
    parser.add_argument("--orders", type=int, choices=(1, 2), help="2 reads each choice in both orders")
    parser.add_argument("--reproducible", action="store_true", help="the same question gives the same numbers again")
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="the longest time for all answers")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--if",
        dest="conditions",
        action="append",
        default=[],
        metavar="CONDITION",
        help=f"exit with {NOT_SO} unless it holds: 'angry>0.7', 'urgency>=1.5', 'team=billing', 'team=billing>0.5' "
        "(repeatable: all have to hold)",
    )


def run(client: Client, options: Namespace) -> None:
    """Ask, print the answers, and exit by the condition."""
    questions: list[Question] = options.questions or []
    if not questions:
        raise WrongUse("there is no question: add --choice, --score or --predicate")
    members: dict[str, Any] = {
        name: value for name in ("model", "orders", "timeout_ms") if (value := getattr(options, name)) is not None
    }
    given: DecideOptions = {**members, "reproducible": options.reproducible}  # type: ignore[typeddict-item]  # by name
    # Before the request, which takes time.
    asked = [_asked(text.strip(), questions) for text in options.conditions]
    checks = [(place, condition.of(questions[place])) for place, condition in asked]
    decision = client.decide(_state(options), questions, **given)
    if options.json:
        print(json_text(decision, sys.stdout))
    else:
        _print(questions, decision)
    if not all(holds(decision.answers[place]) for place, holds in checks):
        raise SystemExit(NOT_SO)


def _parts(text: str, example: str) -> tuple[str, list[str]]:
    name, _, rest = (part.strip() for part in text.partition("="))
    parts = [part.strip() for part in rest.split(",")]
    if not name or len(parts) < 2 or not all(parts):
        raise ArgumentTypeError(f"{text!r} is not NAME=ONE,ANOTHER,...: write it like {example!r}")
    return name, parts


def _choice(text: str) -> Choice:
    name, parts = _parts(text, "team=billing,shipping,tech")
    return Choice(
        name=name, instructions=_question(name, "Which one is it: "), options=[Option(each) for each in parts]
    )


def _score(text: str) -> Score:
    name, parts = _parts(text, "urgency=can wait,today,now")
    return Score(name=name, instructions=_question(name, "How much is it: "), levels=[Level(each) for each in parts])


def _predicate(text: str) -> Predicate:
    found = _NAMED.fullmatch(text)
    name, statement = ("", text.strip()) if found is None else (found["name"], found["statement"].strip())
    if not statement:
        raise ArgumentTypeError("an empty text is no statement: write it like 'the customer is angry'")
    if not name and len(statement.encode(errors="surrogatepass")) <= MAX_NAME_BYTES:
        name = statement
    return Predicate(name=name or None, instructions=_question(statement, "Is it so: "))


def _question(name: str, before: str) -> str:
    return name if name.endswith("?") else f"{before}{name}?"


_QUESTIONS = (
    ("--choice", _choice, "NAME=A,B,...", "which of these values it is (repeatable)"),
    ("--score", _score, "NAME=LOW,...,HIGH", "how much it is, on these levels (repeatable)"),
    ("--predicate", _predicate, "[NAME=]TEXT", "whether it is so (repeatable)"),
)


def _asked(text: str, questions: list[Question]) -> tuple[int, Condition]:
    """Return the question of a condition, which begins with its name or else a word of the only name that has it.

    A question without a name is named by its place, as in its answer. Raises WrongUse.
    """
    names = [each.name or str(place) for place, each in enumerate(questions)]
    # A statement may be a name, and have signs of its own.
    for name in sorted(names, key=len, reverse=True):
        if text.startswith(name) and (figure := _FIGURE.fullmatch(text, len(name))) is not None:
            return names.index(name), _condition(name, figure)
    word = _WORD.match(text)
    figure = None if word is None else _FIGURE.fullmatch(text, word.end())
    if word is None or figure is None:
        raise WrongUse(f"--if: {text!r} is no condition: write it like 'angry>0.7' or 'team=billing'")
    near = [place for place, name in enumerate(names) if word[0].strip() in re.findall(r"\w+", name)]
    if len(near) != 1:
        raise WrongUse(f"--if: no question is named {word[0].strip()!r}; the questions: {', '.join(names)}")
    return near[0], _condition(word[0].strip(), figure)


def _condition(name: str, figure: re.Match[str]) -> Condition:
    option, bound = figure["option"], float(figure["bound"] or 0)
    if option is None:
        return Condition(name, None, figure["sign"], bound)
    return Condition(name, option.strip(), figure["sign"], bound, figure[0].partition("=")[2].strip())


def _state(options: Namespace) -> Any:
    """Return the state: the argument, or what a file has or is piped: an object, array or text in JSON, else a text."""
    piped = options.state is None and options.file is None and not sys.stdin.isatty()
    file = "-" if piped else options.file
    if (options.state is None) == (file is None):
        raise WrongUse("give the state either as an argument or with --file, or pipe it in")
    if file is None:
        return read_text(options.state)
    try:
        text = read_text("-") if file == "-" else Path(file).read_text(encoding="utf-8").removesuffix("\n")
        text = text.removeprefix("\ufeff")  # some editors mark UTF-8 so
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise WrongUse(f"cannot read {file}: {why}") from error
    if not text:
        raise WrongUse("the state is empty: give it as an argument or with --file, or pipe it in")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict | list | str) else text


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _labels(question: Question) -> Iterator[str]:
    match question:
        case Choice(options=options):
            yield from (_shown(option.value) for option in options)
        case Score(levels=levels):
            yield from (_shown(level.label) for level in levels)
        case Predicate():
            yield from ("yes", "no")


def _figure(answer: QuestionAnswer) -> str:
    match answer:
        case ChoiceAnswer(choice=choice, confidence=confidence):
            return f"{_shown(choice)}  (confidence {confidence:.2f}, mass {answer.mass:.2f})"
        case ScoreAnswer(score=score, confidence=confidence):
            return (
                f"{score:.2f} of {len(answer.probabilities) - 1}  (confidence {confidence:.2f}, mass {answer.mass:.2f})"
            )
        case PredicateAnswer(probability=probability):
            return f"{probability:.2f}  (mass {answer.mass:.2f})"


def _print(questions: list[Question], decision: Decision) -> None:
    bars = _bars() if is_terminal(sys.stdout) else None
    for question, answer in zip(questions, decision.answers, strict=True):
        heading = one_line(f"{answer.name}: {_figure(answer)}")
        rows = [(one_line(label), share) for label, share in zip(_labels(question), answer.probabilities, strict=True)]
        print(heading)
        for label, share in rows:
            if bars is None:
                print(f"  {shortened(label, _NAME_WIDTH):<{_NAME_WIDTH}} {share:.3f}")
            else:
                bars(label, share)


def _bars() -> Any:
    """Return a function that draws a bar; None without rich."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return None
    console = Console(highlight=False)
    room = console.width - len("   0.000 ")
    name_width = min(_NAME_WIDTH, room // 2)
    bar_width = max(0, min(_BAR_WIDTH, room - name_width))

    def draw(label: str, share: float) -> None:
        name = Text(label)
        name.truncate(name_width, overflow="ellipsis", pad=True)  # by cells: some characters have two
        filled = round(share * bar_width)
        bar = Text.assemble(("━" * filled, "green"), ("─" * (bar_width - filled), "dim"))
        console.print(Text.assemble("  ", name, " ", bar, f" {share:.3f}"))

    return draw
