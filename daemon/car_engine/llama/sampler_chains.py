"""Sampler chains, in llama.cpp's usual order."""

import ctypes
from typing import Any

import msgspec
from llama_cpp import llama_cpp as binding

from car_base.ipc.codec import unpacked_reading
from car_base.ipc.frames import Run
from car_engine.grammar.constraint import BuildCache, Constraints
from car_engine.llama.sampler import MOST, Candidates, Sampler, Shortlist
from car_engine.llama.tokens import Vocabulary
from car_protocol.sampling import Dry, Sampling

_KEEP_ONE = 1
_NEVER = float("-inf")
# Logits divided by less overflow when llama.cpp sorts them; the choice is greedy long before.
_LEAST_TEMPERATURE = 1e-4
# A token counts as impossible below this fraction of the likeliest token's probability.
_POSSIBLE = 1e-30
_MIROSTAT_CANDIDATES = 100
_REMEMBERED = 8
# In smaller vocabularies llama.cpp's look at all tokens is as fast as a shortlist: a decode empties the caches of code.
# Where it penalizes repetitions it takes three times as long.
_LEAST_VOCABULARY = 65_536
_LEAST_PENALIZED = 16_384


class SamplerChains:
    """Builds the samplers of one model's requests; `warm` prepares expensive parts in the tokenizer thread."""

    def __init__(self, vocabulary: Vocabulary, constraints: Constraints, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._constraints = constraints
        self._context_tokens = context_tokens
        self._candidates = Candidates(vocabulary.size)
        self._dry: BuildCache[tuple[int, bytes], _DryPrototype] = BuildCache(self._dry_prototype, _REMEMBERED)

    def warm(self, owner: int, sampling: Sampling) -> None:
        """Build the DRY sampler now: it reads the whole vocabulary for each breaker, too slow for the loop."""
        if (dry := _effective_dry(sampling)) is not None:
            self._dry.get((owner, msgspec.json.encode(dry)))

    def build(self, run: Run, prompt: list[int]) -> Sampler:
        """Return a request's sampler, to be closed once; repetitions count from the prompt on."""
        options, constraint = run.options, run.prepared.constraint
        bound = None
        if constraint:
            reading = unpacked_reading(run.prepared.reading)
            thinking = None if reading.inside else reading.thinking
            # With this token the answer may open a thought by itself.
            think_token = self._vocabulary.token_of(thinking.open) if thinking is not None else None
            bound = self._constraints.start(run.prepared.owner, constraint, think_token)
        chain = binding.llama_sampler_chain_init(binding.llama_sampler_chain_default_params())
        for sampler in self._samplers(run.prepared.owner, options, options.seed):
            if not sampler:
                raise ValueError("llama.cpp refused a sampler")
            binding.llama_sampler_chain_add(chain, sampler)
        never, shortlist = self._never(options), self._shortlist(options)
        sampler = Sampler(chain, self._candidates, bound, options.logprobs, never, shortlist)
        # The prompt tokens that count for repetitions.
        dry = _effective_dry(options)
        remembered = max(self._penalized(options), self._window(dry.penalty_last_n) if dry is not None else 0)
        for token in prompt[-remembered:] if remembered else ():
            if token >= 0:  # not an image's placeholder
                sampler.accept(token)
        return sampler

    def _never(self, sampling: Sampling) -> frozenset[int] | None:
        """Return the tokens that a greedy choice excludes; None if more than the likeliest token decides."""
        shaped = sampling.logit_bias or _penalizes(sampling) or _effective_dry(sampling) is not None
        if shaped or sampling.temperature >= _LEAST_TEMPERATURE:
            return None
        return self._vocabulary.ends if sampling.ignore_eos else frozenset()

    def _shortlist(self, sampling: Sampling) -> Shortlist | None:
        """Return the shortlist of a chain that keeps few of the likeliest tokens; None for other chains."""
        kept, remembered = _kept(sampling), self._penalized(sampling)
        if kept is None or remembered > MOST or _effective_dry(sampling) is not None:
            return None
        if self._vocabulary.size < (_LEAST_PENALIZED if remembered else _LEAST_VOCABULARY):
            return None
        biased = (token for token in self._biases(sampling) if token < self._vocabulary.size)
        return Shortlist(kept, biased, remembered)

    def _penalized(self, sampling: Sampling) -> int:
        """Return how many tokens back repetitions are penalized."""
        return self._window(sampling.repeat_last_n) if _penalizes(sampling) else 0

    def _samplers(self, owner: int, sampling: Sampling, seed: int) -> list[Any]:
        shaping, size = self._bias_samplers(sampling), self._vocabulary.size
        if last := self._penalized(sampling):
            penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
            shaping.append(binding.llama_sampler_init_penalties(size, last, *penalties))
        if (dry := _effective_dry(sampling)) is not None:
            shaping.append(binding.llama_sampler_clone(self._dry.get((owner, msgspec.json.encode(dry))).handle))
        if sampling.temperature < _LEAST_TEMPERATURE:
            return [*shaping, binding.llama_sampler_init_greedy()]
        temperature = binding.llama_sampler_init_temp(sampling.temperature)
        if (mirostat := sampling.mirostat) is None:
            return [*shaping, *_filters(sampling, seed), temperature, binding.llama_sampler_init_dist(seed)]
        tau, eta = mirostat.tau, mirostat.eta
        if mirostat.version == 1:
            choice = binding.llama_sampler_init_mirostat(size, seed, tau, eta, _MIROSTAT_CANDIDATES)
        else:
            choice = binding.llama_sampler_init_mirostat_v2(seed, tau, eta)
        return [*shaping, temperature, choice]

    def _bias_samplers(self, sampling: Sampling) -> list[Any]:
        biases = self._biases(sampling)
        if not biases:
            return []
        entries = [binding.llama_logit_bias(token, bias) for token, bias in biases.items()]
        kind = binding.llama_logit_bias * len(entries)
        return [binding.llama_sampler_init_logit_bias(self._vocabulary.size, len(entries), kind(*entries))]

    def _biases(self, sampling: Sampling) -> dict[int, float]:
        """Return what is added to logits, by token."""
        biases = {int(token): bias for token, bias in sampling.logit_bias.items()}
        if sampling.ignore_eos:
            biases |= dict.fromkeys(sorted(self._vocabulary.ends), _NEVER)
        return biases

    def _window(self, last: int) -> int:
        return self._context_tokens if last < 0 else last

    def _dry_prototype(self, key: tuple[int, bytes]) -> "_DryPrototype":
        dry = msgspec.json.decode(key[1], type=Dry)
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
    """Return the DRY settings, None if they have no effect."""
    dry = sampling.dry
    return dry if dry is not None and dry.multiplier and dry.penalty_last_n else None


def _kept(sampling: Sampling) -> int | None:
    """Return how many of the likeliest tokens the first filter keeps; None if it counts others too."""
    if sampling.temperature < _LEAST_TEMPERATURE:
        return 1
    if sampling.mirostat is not None or sampling.top_n_sigma > 0:
        return None
    return sampling.top_k or None


def _filters(sampling: Sampling, seed: int) -> list[Any]:
    chosen = []
    if sampling.top_n_sigma > 0:
        chosen.append(binding.llama_sampler_init_top_n_sigma(sampling.top_n_sigma))
    if sampling.top_k:
        chosen.append(binding.llama_sampler_init_top_k(sampling.top_k))
    if sampling.typical_p < 1:
        # Tokens of probability 0, forbidden by a bias or another filter, would make llama.cpp's entropy NaN.
        chosen.append(binding.llama_sampler_init_min_p(_POSSIBLE, _KEEP_ONE))
        chosen.append(binding.llama_sampler_init_typical(sampling.typical_p, _KEEP_ONE))
    if sampling.top_p < 1:
        chosen.append(binding.llama_sampler_init_top_p(sampling.top_p, _KEEP_ONE))
    if sampling.min_p > 0:
        chosen.append(binding.llama_sampler_init_min_p(sampling.min_p, _KEEP_ONE))
    if (xtc := sampling.xtc) is not None and xtc.probability:
        chosen.append(binding.llama_sampler_init_xtc(xtc.probability, xtc.threshold, _KEEP_ONE, seed))
    return chosen
