"""Sampler chains in llama.cpp's usual order."""

import ctypes
from typing import Any

import msgspec
from llama_cpp import llama_cpp as binding

from car_daemon.engine.frames import Run
from car_daemon.engine.grammar.constraint import Constraints
from car_daemon.engine.llama.candidates import Candidates
from car_daemon.engine.llama.sampler import Sampler, accept
from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.prototypes import Prototypes
from car_protocol.sampling import Dry, Sampling

_KEEP_ONE = 1
_NEVER = float("-inf")
# Logits divided by less overflow where llama.cpp sorts them; the choice is the greedy one long before.
_LEAST_TEMPERATURE = 1e-4
# What is less likely than this, by the likeliest, counts as impossible.
_POSSIBLE = 1e-30
_MIROSTAT_CANDIDATES = 100
_REMEMBERED = 8


class SamplerChains:
    """Builds the samplers of one model's requests; `warm` prepares what is dear, in the tokenizer thread."""

    def __init__(self, vocabulary: Vocabulary, constraints: Constraints, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._constraints = constraints
        self._context_tokens = context_tokens
        self._candidates = Candidates(vocabulary.size)
        self._dry = Prototypes(self._dry_prototype, _REMEMBERED)

    def warm(self, sampling: Sampling) -> None:
        """Build now what takes too long for the loop: DRY reads the whole vocabulary for each sequence breaker."""
        if (dry := _effective_dry(sampling)) is not None:
            self._dry.get(msgspec.json.encode(dry))

    def build(self, run: Run, prompt: list[int]) -> Sampler:
        """Return a request's sampler, which is closed once; repetitions count from the prompt on."""
        sampling = run.sampling
        bound = self._constraints.start(run.constraint, self._opener(run)) if run.constraint else None
        chain = binding.llama_sampler_chain_init(binding.llama_sampler_chain_default_params())
        for sampler in self._samplers(sampling, run.seed):
            if not sampler:
                raise ValueError("llama.cpp refused a sampler")
            binding.llama_sampler_chain_add(chain, sampler)
        remembered = self._remembered(sampling)
        for token in prompt[-remembered:] if remembered else ():
            if token >= 0:  # not a place of an image
                accept(chain, token)
        return Sampler(chain, self._candidates, bound, run.logprobs, self._never(sampling))

    def _never(self, sampling: Sampling) -> frozenset[int] | None:
        """Return the tokens that a plainly greedy choice leaves out; None where the choice is not plainly greedy."""
        shaped = sampling.logit_bias or _penalizes(sampling) or _effective_dry(sampling) is not None
        if shaped or sampling.temperature >= _LEAST_TEMPERATURE:
            return None
        return self._vocabulary.ends if sampling.ignore_eos else frozenset()

    def _opener(self, run: Run) -> int | None:
        """Return the token with which the answer may open a thought of its own accord."""
        reading = run.reading
        if reading.thinking is None or reading.inside:
            return None
        return self._vocabulary.token_of(reading.thinking.open)

    def _samplers(self, sampling: Sampling, seed: int) -> list[Any]:
        shaping = self._biases(sampling) + self._penalties(sampling) + self._repetition(sampling)
        if sampling.temperature < _LEAST_TEMPERATURE:
            return [*shaping, binding.llama_sampler_init_greedy()]
        temperature = binding.llama_sampler_init_temp(sampling.temperature)
        if sampling.mirostat is not None:
            return [*shaping, temperature, self._mirostat(sampling, seed)]
        filters = _filters(sampling) + _exclusion(sampling, seed)
        return [*shaping, *filters, temperature, binding.llama_sampler_init_dist(seed)]

    def _biases(self, sampling: Sampling) -> list[Any]:
        biases = {int(token): bias for token, bias in sampling.logit_bias.items()}
        if sampling.ignore_eos:
            biases |= dict.fromkeys(sorted(self._vocabulary.ends), _NEVER)
        if not biases:
            return []
        entries = [binding.llama_logit_bias(token, bias) for token, bias in biases.items()]
        kind = binding.llama_logit_bias * len(entries)
        return [binding.llama_sampler_init_logit_bias(self._vocabulary.size, len(entries), kind(*entries))]

    def _penalties(self, sampling: Sampling) -> list[Any]:
        last = self._window(sampling.repeat_last_n)
        if not last or not _penalizes(sampling):
            return []
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        return [binding.llama_sampler_init_penalties(self._vocabulary.size, last, *penalties)]

    def _repetition(self, sampling: Sampling) -> list[Any]:
        dry = _effective_dry(sampling)
        return [] if dry is None else [binding.llama_sampler_clone(self._dry.get(msgspec.json.encode(dry)).handle)]

    def _mirostat(self, sampling: Sampling, seed: int) -> Any:
        assert sampling.mirostat is not None
        tau, eta = sampling.mirostat.tau, sampling.mirostat.eta
        if sampling.mirostat.version == 1:
            return binding.llama_sampler_init_mirostat(self._vocabulary.size, seed, tau, eta, _MIROSTAT_CANDIDATES)
        return binding.llama_sampler_init_mirostat_v2(seed, tau, eta)

    def _remembered(self, sampling: Sampling) -> int:
        """Return how many tokens before the answer count as repeated when they come again."""
        penalties = self._window(sampling.repeat_last_n) if _penalizes(sampling) else 0
        dry = _effective_dry(sampling)
        return max(penalties, 0 if dry is None else self._window(dry.penalty_last_n))

    def _window(self, last: int) -> int:
        return self._context_tokens if last < 0 else last

    def _dry_prototype(self, text: bytes) -> "_DryPrototype":
        dry = msgspec.json.decode(text, type=Dry)
        return _DryPrototype(self._vocabulary, dry, self._window(dry.penalty_last_n))


class _DryPrototype:
    """A DRY sampler to be cloned; freed with its last reference."""

    def __init__(self, vocabulary: Vocabulary, dry: Dry, last: int) -> None:
        texts = [text.encode() for text in dry.sequence_breakers]
        breakers = (ctypes.c_char_p * len(texts))(*texts)
        self.handle = binding.llama_sampler_init_dry(
            vocabulary.handle, dry.multiplier, dry.base, dry.allowed_length, last, breakers, len(texts)
        )

    def __del__(self) -> None:
        binding.llama_sampler_free(self.handle)


def _penalizes(sampling: Sampling) -> bool:
    return (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1.0, 0.0, 0.0)


def _effective_dry(sampling: Sampling) -> Dry | None:
    """Return the DRY settings, or None where they change nothing."""
    dry = sampling.dry
    return dry if dry is not None and dry.multiplier and dry.penalty_last_n else None


def _filters(sampling: Sampling) -> list[Any]:
    chosen = []
    if sampling.top_n_sigma > 0:
        chosen.append(binding.llama_sampler_init_top_n_sigma(sampling.top_n_sigma))
    if sampling.top_k:
        chosen.append(binding.llama_sampler_init_top_k(sampling.top_k))
    if sampling.typical_p < 1:
        # A token of probability 0 makes llama.cpp's entropy no number: those that a bias or another filter forbade go.
        chosen.append(binding.llama_sampler_init_min_p(_POSSIBLE, _KEEP_ONE))
        chosen.append(binding.llama_sampler_init_typical(sampling.typical_p, _KEEP_ONE))
    if sampling.top_p < 1:
        chosen.append(binding.llama_sampler_init_top_p(sampling.top_p, _KEEP_ONE))
    if sampling.min_p > 0:
        chosen.append(binding.llama_sampler_init_min_p(sampling.min_p, _KEEP_ONE))
    return chosen


def _exclusion(sampling: Sampling, seed: int) -> list[Any]:
    xtc = sampling.xtc
    if xtc is None or not xtc.probability:
        return []
    return [binding.llama_sampler_init_xtc(xtc.probability, xtc.threshold, _KEEP_ONE, seed)]
