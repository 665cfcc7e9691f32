"""Sampler chains in llama.cpp's usual order."""

from typing import Any

from llama_cpp import llama_cpp as binding

from car_daemon.engine.llama.tokens import Vocabulary
from car_protocol.infer import Sampling

_KEEP_ONE = 1
_NEVER = float("-inf")


class SamplerChains:
    """Builds and frees the sampler chain of one request."""

    def __init__(self, vocabulary: Vocabulary, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._no_ends = (binding.llama_logit_bias * len(vocabulary.ends))(
            *[binding.llama_logit_bias(token, _NEVER) for token in sorted(vocabulary.ends)]
        )

    def build(self, sampling: Sampling, seed: int) -> object:
        """Return a chain that belongs to one request; `free` takes it back."""
        chain = binding.llama_sampler_chain_init(binding.llama_sampler_chain_default_params())
        for sampler in self._samplers(sampling, seed):
            if not sampler:
                raise ValueError("llama.cpp refused a sampler")
            binding.llama_sampler_chain_add(chain, sampler)
        return chain

    def free(self, sampler: object) -> None:
        """Free a chain and all that is in it."""
        binding.llama_sampler_free(sampler)

    def _samplers(self, sampling: Sampling, seed: int) -> list[Any]:
        chosen = self._biases(sampling) + self._penalties(sampling)
        if sampling.temperature == 0:
            return [*chosen, binding.llama_sampler_init_greedy()]
        if sampling.top_k:
            chosen.append(binding.llama_sampler_init_top_k(sampling.top_k))
        if sampling.typical_p < 1:
            chosen.append(binding.llama_sampler_init_typical(sampling.typical_p, _KEEP_ONE))
        if sampling.top_p < 1:
            chosen.append(binding.llama_sampler_init_top_p(sampling.top_p, _KEEP_ONE))
        if sampling.min_p > 0:
            chosen.append(binding.llama_sampler_init_min_p(sampling.min_p, _KEEP_ONE))
        chosen.append(binding.llama_sampler_init_temp(sampling.temperature))
        chosen.append(binding.llama_sampler_init_dist(seed))
        return chosen

    def _biases(self, sampling: Sampling) -> list[Any]:
        if not sampling.ignore_eos or not len(self._no_ends):
            return []
        size = self._vocabulary.size
        return [binding.llama_sampler_init_logit_bias(size, len(self._no_ends), self._no_ends)]

    def _penalties(self, sampling: Sampling) -> list[Any]:
        last = sampling.repeat_last_n if sampling.repeat_last_n >= 0 else self._context_tokens
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        if last == 0 or penalties == (1.0, 0.0, 0.0):
            return []
        return [binding.llama_sampler_init_penalties(self._vocabulary.size, last, *penalties)]
